"""Double and single masking as clients drop out, counted: FLASHE, Theorem 2.

The paper measures seconds (FLASHE, Fig. 12); a second there is mostly AES, and AES is called once for
each mask. So masks are counted here, by asking FLASHE itself which streams it would take, for
random sets of survivors. No machine's speed is in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.flashe.masking import for_dropout
from flhe.schemes.flashe.streams import Mode

CLIENTS = (20, 40, 80)
MODES: tuple[Mode, Mode] = ("double", "single")


def crossover(members: int) -> float:
    """The dropout rate up to which double masking makes no more masks than single, by bisection.

    0.0 where that is so at no rate above: among two or three clients.
    """
    low, high = 0.0, 1.0  # without survivors single masking has nothing to open: it is cheaper
    while high - low > 1e-12:
        middle = (low + high) / 2
        if for_dropout(members, middle) == "double":
            low = middle
        else:
            high = middle
    return low


def survivors_of(
    clients: int, dropout: float, sets: int, rng: np.random.Generator
) -> tuple[float, list[tuple[int, ...]]]:
    """What a dropout rate comes to in whole clients, and random sets of survivors."""
    survivors = round(clients * (1 - dropout))
    chosen = (rng.choice(clients, survivors, replace=False).tolist() for _ in range(sets))
    return (clients - survivors) / clients, [tuple(sorted(each)) for each in chosen]


def masks_made(adder: FlasheAdder, sets: Sequence[Sequence[int]]) -> float:
    """Masks that a survivor makes for a value, its own and then those of the sum: the sets' mean."""
    return statistics.fmean(
        sum(map(len, (*adder.mask_terms(senders[:1]), *adder.mask_terms(senders))))
        for senders in sets
    )

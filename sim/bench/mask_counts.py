"""Double and single masking as clients drop out, counted: FLASHE, Theorem 2.

The paper measures seconds (FLASHE, Fig. 12); a second there is mostly AES, and AES is called once for
each mask. So masks are counted here, by asking the scheme itself which streams it would take, for
random sets of survivors, beside what Theorem 2 expects. No machine's speed is in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flhe.errors import ConfigError
from flhe.schemes.flashe.masking import Mode, expected, for_dropout
from flhe.schemes.flashe.scheme import Flashe

CLIENTS = (20, 40, 80)
DROPOUTS = tuple(i / 20 for i in range(19))
"""0 to 0.9. Each is a whole number of 20, 40 or 80 clients."""

SETS = 50
"""Sets of survivors at one dropout rate, as in the paper."""

SEED = 12
MODES: tuple[Mode, Mode] = ("double", "single")


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks that a surviving client makes for one value under one masking.

    Parameters
    ----------
    expected : float
        By Theorem 2.
    mean, min, max : float
        Over the sets of survivors.
    """

    expected: float
    mean: float
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Point:
    """One dropout rate."""

    dropout: float
    survivors: int
    double: Masks
    single: Masks


@dataclass(frozen=True, slots=True)
class Sweep:
    """All dropout rates among one number of clients, and where the maskings cost the same.

    Parameters
    ----------
    clients : int
        N.
    crossover : float
        By Theorem 2.
    measured_crossover : float or None
        Of the means, on straight lines between them; None where they do not cross.
    points : tuple[Point, ...]
        By ascending dropout rate.
    """

    clients: int
    crossover: float
    measured_crossover: float | None
    points: tuple[Point, ...]


def crossover(members: int) -> float:
    """The dropout rate up to which double masking makes no more masks than single, by bisection.

    0.0 where that is so at no rate above: among two or three clients.
    """
    low, high = 0.0, 1.0  # without survivors single masking has nothing to open: it is cheaper
    while high - low > 1e-12:
        middle = (low + high) / 2
        if for_dropout(members, middle).masking == "double":
            low = middle
        else:
            high = middle
    return low


def sweep(
    clients: int,
    rng: np.random.Generator,
    *,
    dropouts: Sequence[float] = DROPOUTS,
    sets: int = SETS,
) -> Sweep:
    """Count masks among `clients`, for random sets of survivors at each dropout rate.

    Raises
    ------
    ConfigError
        No sets, rates that do not ascend, or one at which nobody survives.
    """
    if sets < 1:
        raise ConfigError(f"sets={sets}: must be at least 1")
    if any(b <= a for a, b in pairwise(dropouts)):
        raise ConfigError("dropout rates must ascend")
    points = tuple(_point(clients, dropout, sets, rng) for dropout in dropouts)
    return Sweep(clients, crossover(clients), _crossing(points), points)


def _point(clients: int, dropout: float, sets: int, rng: np.random.Generator) -> Point:
    survivors = round(clients * (1 - dropout))
    if not 1 <= survivors <= clients:
        raise ConfigError(f"dropout={dropout} of {clients} clients: at least one must survive")
    chosen = [rng.choice(clients, survivors, replace=False).tolist() for _ in range(sets)]
    share = (clients - survivors) / clients  # what it came to in whole clients
    found: dict[str, Masks] = {}
    for mode in MODES:
        counts = [_made(Flashe(clients, masking=mode), senders) for senders in chosen]
        mean = statistics.fmean(counts)
        found[mode] = Masks(expected(mode, clients, share), mean, min(counts), max(counts))
    return Point(share, survivors, found["double"], found["single"])


def _made(scheme: Flashe, survivors: Sequence[int]) -> int:
    """Masks that one survivor makes for a value: those of its own, then those of the sum."""
    own = scheme.mask_terms(survivors[:1])
    both = scheme.mask_terms(survivors)
    return sum(map(len, own)) + sum(map(len, both))


def _crossing(points: Sequence[Point]) -> float | None:
    for before, after in pairwise(points):
        a, b = (p.single.mean - p.double.mean for p in (before, after))
        if a >= 0 > b:
            return before.dropout + (after.dropout - before.dropout) * a / (a - b)
    return None

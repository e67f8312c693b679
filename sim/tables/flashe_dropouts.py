"""Seconds of FLASHE's two maskings as clients drop out: one client's encryption and opening."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sealed import Sealed
from flhe_lab.bench import SLOT, Contender
from flhe_lab.bench import measure as in_turns
from flhe_lab.bench.mask_counts import CLIENTS, MODES, masks_made, survivors_of
from flhe_lab.tables.section import Say

RATES = tuple(i / 10 for i in range(10))
"""0 to 0.9, as in the paper."""

SETS = 50
"""Sets of survivors at a rate for which masks are counted, as in the paper."""

SEED = 12
REPEATS = 5
"""Of one set, of which the fastest counts."""

CHECKED = 1000
"""Values of the sums that are opened to see that they are right."""


def measure(
    values: int,
    draws: int,
    say: Say,
    *,
    clients: Sequence[int] = CLIENTS,
    rates: Sequence[float] = RATES,
) -> list[dict[str, Any]]:
    """For each number of clients and each rate: mean seconds, and mean masks a value.

    Seconds are of one survivor, from quantized integers to a ciphertext and from the sum to integers,
    the mean over `draws` random sets of survivors. What the data are makes no difference to that, so
    the ciphertext that is opened is the survivor's own, named as the sum; a short sum is added up and
    opened for each set and masking.

    Raises
    ------
    FlheError
        A sum that opens to something else.
    """
    rng = np.random.default_rng(SEED)  # who survives, and test data; masks never come from here
    out = []
    for count in clients:
        plain = _integers(values, rng)
        for rate in rates:
            share, sets = survivors_of(count, rate, SETS, rng)
            say(f"{count} clients, dropout {share:g}")
            schemes = {mode: Flashe(count, masking=mode) for mode in MODES}
            taking = [
                _one(f"{mode} {i}", schemes[mode], senders, plain, rng)
                for i, senders in enumerate(sets[:draws])
                for mode in MODES
            ]
            seen = in_turns(taking, REPEATS, warm=False)
            took = {
                mode: sum(seen[f"{mode} {i}"].times["both"].min for i in range(draws)) / draws
                for mode in MODES
            }
            masks = {mode: masks_made(schemes[mode], sets) for mode in MODES}
            out.append({"clients": count, "dropout": share, "seconds": took, "masks": masks})
    return out


def _one(
    name: str, scheme: Flashe, senders: tuple[int, ...], plain: Plain, rng: np.random.Generator
) -> Contender:
    """One survivor's encryption and opening, among `senders`."""

    def both() -> None:
        key = secrets.token_bytes(32)
        part = FlasheSealer(scheme, key, senders[0]).encrypt(plain, SLOT)
        total = Sealed(part.scheme, part.slot, senders, part.length, part.data, part.mode)
        FlasheOpener(scheme, key).decrypt(total)

    return Contender(name, {"both": both}, error=lambda: _off(scheme, senders, rng))


def _off(scheme: Flashe, senders: Sequence[int], rng: np.random.Generator) -> float:
    """By how much a short sum of those clients opens to something else."""
    key = secrets.token_bytes(32)
    exact: NDArray[np.int64] = np.zeros(CHECKED, np.int64)
    total: Sealed | None = None
    for rank in senders:
        plain = _integers(CHECKED, rng)
        exact += plain.values
        total = scheme.add(total, FlasheSealer(scheme, key, rank).encrypt(plain, SLOT))
    assert total is not None
    return float(np.abs(FlasheOpener(scheme, key).decrypt(total) - exact).max())


def _integers(count: int, rng: np.random.Generator) -> Plain:
    """Quantized values that use the whole of 16 bits, and no extras."""
    largest = (1 << 15) - 1
    drawn = rng.integers(-largest, largest, count, np.int32, endpoint=True)
    return Plain(drawn, np.empty(0, np.int64))


def crossing(
    rates: Sequence[float], double: Sequence[float], single: Sequence[float]
) -> float | None:
    """The rate beyond which single masking takes less, on straight lines; None where there is none.

    Where noise makes them cross more than once, it is where fewest points lie on the wrong side.
    """
    gaps = [s - d for s, d in zip(single, double, strict=True)]
    wrong = [
        sum(g < 0 for g in gaps[:at]) + sum(g >= 0 for g in gaps[at:])
        for at in range(len(gaps) + 1)
    ]
    at = wrong.index(min(wrong))
    if at in (0, len(gaps)):
        return None
    before, after = gaps[at - 1], gaps[at]  # one more point to either side would have been wrong
    return rates[at - 1] + (rates[at] - rates[at - 1]) * before / (before - after)

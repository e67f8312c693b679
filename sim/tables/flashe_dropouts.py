"""Seconds of FLASHE's two maskings as clients drop out: one client's encryption and opening."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import FlheError
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.streams import Mode
from flhe.schemes.sealed import Sealed
from flhe_lab.bench import SLOT
from flhe_lab.bench.mask_counts import CLIENTS, MODES, SEED, sweep
from flhe_lab.tables.section import Say

RATES = tuple(i / 10 for i in range(10))
"""0 to 0.9, as in the paper."""

SETS = 50
"""Sets of survivors at a rate for which masks are counted, as in the paper."""

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
    opened for each number of clients and masking.

    Raises
    ------
    FlheError
        A sum that opens to something else.
    """
    rng = np.random.default_rng(SEED)  # who survives, and test data; masks never come from here
    out = []
    for count in clients:
        counted = sweep(count, rng, dropouts=rates, sets=SETS)
        plain = _integers(values, rng)
        for mode in MODES:
            _check(Flashe(count, masking=mode), rng)
        for point in counted.points:
            say(f"{count} clients, dropout {point.dropout:g}")
            seconds = _seconds(count, point.survivors, plain, draws, rng)
            masks = {mode: getattr(point, mode).mean for mode in MODES}
            out.append(
                {
                    "clients": count,
                    "dropout": point.dropout,
                    "seconds": seconds,
                    "masks": masks,
                }
            )
    return out


def _seconds(
    count: int, survivors: int, plain: Plain, draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Mean seconds of encryption and opening by masking, in turns, over sets of survivors."""
    took: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    for _ in range(draws):
        senders = tuple(sorted(rng.choice(count, survivors, replace=False).tolist()))
        for mode in MODES:
            scheme = Flashe(count, masking=mode)
            took[mode].append(min(_once(scheme, senders, plain) for _ in range(REPEATS)))
    return {mode: sum(each) / len(each) for mode, each in took.items()}


def _once(scheme: Flashe, senders: tuple[int, ...], plain: Plain) -> float:
    key = secrets.token_bytes(32)
    began = time.perf_counter()
    part = FlasheSealer(scheme, key, senders[0]).encrypt(plain, SLOT)
    sealed = time.perf_counter() - began
    total = Sealed(part.scheme, part.slot, senders, part.length, part.data, part.mode)
    began = time.perf_counter()
    FlasheOpener(scheme, key).decrypt(total)
    return sealed + time.perf_counter() - began


def _check(scheme: Flashe, rng: np.random.Generator) -> None:
    """See that a sum of some of the clients opens to the sum."""
    key = secrets.token_bytes(32)
    senders = rng.choice(scheme.cohort, max(scheme.cohort // 2, 1), replace=False).tolist()
    exact: NDArray[np.int64] = np.zeros(CHECKED, np.int64)
    total: Sealed | None = None
    for rank in senders:
        plain = _integers(CHECKED, rng)
        exact += plain.values
        total = scheme.add(total, FlasheSealer(scheme, key, rank).encrypt(plain, SLOT))
    assert total is not None
    if not np.array_equal(FlasheOpener(scheme, key).decrypt(total), exact):
        raise FlheError(f"{scheme}: a sum opens to something else; its times mean nothing")


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

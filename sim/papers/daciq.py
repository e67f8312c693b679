"""dACIQ's ratios: the table of `flhe.coding.aciq`, computed, and BatchCrypt's own equation for them.

Source: BatchCrypt, Sec. 4.3. Its Eq. (1) takes X for uniform within the range and is printed with one
tail only, where the integrals above it have two; `two_tailed` is that equation with both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

FINE = 1 << 12
"""Levels beyond which a cell's integral is d**3 f / 6, to more digits than the table has."""


def error(bits: int, c: float) -> float:
    """Expected squared error on N(0, 1) of quantizing to `bits` bits, clipped at c.

    Rounding is integrated cell by cell with 24 points, exact to float64 in cells of a few deviations.
    """
    levels = (1 << (bits - 1)) - 1
    step = c / levels
    if levels > FINE:
        return 2 * tail(c) + step**2 / 6 * math.erf(c / math.sqrt(2))
    points, weights = np.polynomial.legendre.leggauss(24)
    inside = step / 2 * (points + 1)  # of a cell, from where it begins
    x = step * np.arange(levels)[:, np.newaxis] + inside
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    rounded = (density @ (weights * inside * (step - inside))).sum() * step / 2
    return 2 * (tail(c) + float(rounded))


def two_tailed(bits: int) -> float:
    """Ratio alpha / sigma by BatchCrypt's Eq. (1) with both tails; its r is `bits`, sign included.

    For comparison with the paper. It is not what `Clip` uses: see above.
    """
    return best(lambda a: 2 * tail(a) + rounding(bits) * a**2)


def tail(a: float) -> float:
    """Of Eq. (1), of N(0, 1): the squared error of clipping at `a`, on one side."""
    cut = (a**2 + 1) / 2 * math.erfc(a / math.sqrt(2))
    return cut - a * math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)


def rounding(bits: int) -> float:
    """Of Eq. (1): the squared error of rounding, where clipped at 1."""
    return (2.0**bits - 2) / 3 * 2.0 ** (1 - 3 * bits)


def best(cost: Callable[[float], float], low: float = 0.3, high: float = 12.0) -> float:
    """Where `cost`, falling and then rising between `low` and `high`, is least."""
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

    how = {"bounds": (low, high), "method": "bounded", "options": {"xatol": 1e-9}}
    return float(minimize_scalar(cost, **how).x)

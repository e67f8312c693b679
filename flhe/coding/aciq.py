"""dACIQ: how many standard deviations a clipping threshold is away from zero.

Clipping lower costs what is cut; clipping higher costs wider steps. For X ~ N(0, 1) clipped at c and
quantized as `Quantize` does it, with levels = 2**(bits - 1) - 1 and steps of d = c / levels,

    E[(X - Q(X))^2] = 2 * integral from c of (x - c)^2 f(x)
                    + 2 * sum over i < levels of the integral from i d to (i + 1) d of
                          (x - i d) ((i + 1) d - x) f(x),

because stochastic rounding of x between lo and hi has the variance (x - lo)(hi - x). `RATIOS` holds the
c that makes this least; a layer's threshold is alpha = c * sigma. The table is written out, so that all
members of a federation have the same thresholds to the last bit; tests compute it again.

Source: BatchCrypt, Sec. 4.3. Its Eq. (1) takes X for uniform within the range and is printed with one
tail only, where the integrals above it have two; `two_tailed` is that equation with both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError

RATIOS = {
    2: 1.0174021,
    3: 1.7263593,
    4: 2.2669371,
    5: 2.7103919,
    6: 3.0964285,
    7: 3.4454279,
    8: 3.7680710,
    9: 4.0703888,
    10: 4.3561271,
    11: 4.6278380,
    12: 4.8873965,
    13: 5.1362573,
    14: 5.3755928,
    15: 5.6063708,
    16: 5.8294061,
    17: 6.0453935,
    18: 6.2549317,
    19: 6.4585412,
    20: 6.6566777,
    21: 6.8497427,
    22: 7.0380922,
    23: 7.2220435,
    24: 7.4018803,
    25: 7.5778581,
    26: 7.7502072,
    27: 7.9191366,
    28: 8.0848363,
    29: 8.2474795,
    30: 8.4072248,
    31: 8.5642179,
    32: 8.7185928,
}
"""c by bits, sign included: `best(lambda c: error(bits, c))`, rounded to seven places."""

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30
"""Beyond these 1 / alpha leaves float32's normal range, and values would silently become zero."""

FINE = 1 << 12
"""Levels beyond which a cell's integral is d**3 f / 6, to more digits than the table has."""

TAIL, CELLS = 12.0, 24
"""Where a tail is cut off, in standard deviations beyond c, and how many cells integrate it."""


def ratio(bits: int) -> float:
    """c: clipping threshold for data of standard deviation 1; ConfigError beyond 2 to 32 bits."""
    if bits not in RATIOS:
        raise ConfigError(f"dACIQ: thresholds exist for 2 to 32 bits, got {bits}")
    return RATIOS[bits]


def thresholds(bits: int, mean_squares: Sequence[float]) -> tuple[float, ...]:
    """Thresholds alpha = c(bits) * sigma by layer, between MIN_ALPHA and MAX_ALPHA.

    Products, square roots and comparisons of float64 alone: every machine finds the same. A layer that
    did not move (sigma = 0) tells nothing of the round in which it will; it gets the largest alpha of
    the others, and 1 where none moved.
    """
    c = ratio(bits)
    alphas = [c * math.sqrt(m) for m in mean_squares]
    still = max(alphas, default=0.0) or 1.0
    return tuple(min(max(alpha or still, MIN_ALPHA), MAX_ALPHA) for alpha in alphas)


def error(bits: int, c: float) -> float:
    """Expected squared error on N(0, 1) of quantizing to `bits` bits, clipped at c."""
    levels = (1 << (bits - 1)) - 1
    step = c / levels
    cut = _integral(lambda lo, x: (x - c) ** 2 * _density(x), c, TAIL / CELLS, CELLS)
    if levels > FINE:
        return 2 * cut + step**2 / 6 * math.erf(c / math.sqrt(2))
    rounded = _integral(lambda lo, x: (x - lo) * (lo + step - x) * _density(x), 0.0, step, levels)
    return 2 * (cut + rounded)


def two_tailed(bits: int) -> float:
    """Ratio alpha / sigma by BatchCrypt's Eq. (1) with both tails; its r is `bits`, sign included.

    For comparison with the paper. It is not what `Clip` uses: see above.
    """
    rounding = (2.0**bits - 2) / 3 * 2.0 ** (1 - 3 * bits)

    def by_the_paper(a: float) -> float:
        cut = (a**2 + 1) * math.erfc(a / math.sqrt(2))
        return cut - 2 * a * math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) + rounding * a**2

    return best(by_the_paper)


def best(cost: Callable[[float], float], low: float = 0.3, high: float = 12.0) -> float:
    """Where `cost`, falling and then rising between `low` and `high`, is least: golden section."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > 1e-9:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = cost(right)
    return (low + high) / 2


def _density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of N(0, 1)."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _integral(
    f: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
    start: float,
    width: float,
    cells: int,
) -> float:
    """Sum over `cells` cells from `start` on of the integral of f(lo, x), lo where a cell begins.

    Gauss-Legendre with 24 points a cell, exact to float64 where a cell is a few deviations wide.
    """
    points, weights = (np.asarray(a, np.float64) for a in np.polynomial.legendre.leggauss(24))
    lo = (start + width * np.arange(cells, dtype=np.float64))[:, None]
    x: NDArray[np.float64] = lo + width / 2 * (points + 1)
    return float((f(lo, x) @ weights).sum() * width / 2)

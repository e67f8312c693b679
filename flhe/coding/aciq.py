"""dACIQ: clipping thresholds, in standard deviations.

A lower threshold cuts more; a higher one makes wider steps. For X ~ N(0, 1) clipped at c and
quantized as `Quantize` does it, with levels = 2**(bits - 1) - 1 and steps of d = c / levels,

    E[(X - Q(X))^2] = 2 * integral from c of (x - c)^2 f(x)
                    + 2 * sum over i < levels of the integral from i d to (i + 1) d of
                          (x - i d) ((i + 1) d - x) f(x),

because stochastic rounding of x between lo and hi has the variance (x - lo)(hi - x). `RATIOS` holds
the c that minimizes this error. The values are written out so that all members have the same
thresholds to the last bit; `flhe_lab.papers.daciq` computes them.

Source: BatchCrypt, Sec. 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

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
"""c by bits, sign included, rounded to seven places."""

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30
"""Beyond these 1 / alpha leaves float32's normal range, and values would silently become zero."""

AT_ALPHA = np.float32(1 + 2**-22)
"""Maximum of alpha / alpha in float32: a value at the threshold is not beyond it."""


def ratio(bits: int) -> float:
    """Return c: clipping threshold for standard deviation 1; ConfigError beyond 2 to 32 bits."""
    if bits not in RATIOS:
        raise ConfigError(f"dACIQ: thresholds exist for 2 to 32 bits, got {bits}")
    return RATIOS[bits]


def thresholds(bits: int, mean_squares: Sequence[float]) -> tuple[float, ...]:
    """Return thresholds alpha = c(bits) * sigma by layer, between MIN_ALPHA and MAX_ALPHA.

    Only products, square roots and comparisons of float64 are used: every machine gets the same
    result. A layer that did not move (sigma = 0) gives no estimate for later rounds. It gets the
    largest alpha of the others, and 1 if none moved.
    """
    c = ratio(bits)
    alphas = [c * math.sqrt(m) for m in mean_squares]
    still = max(alphas, default=0.0) or 1.0
    return tuple(min(max(alpha or still, MIN_ALPHA), MAX_ALPHA) for alpha in alphas)

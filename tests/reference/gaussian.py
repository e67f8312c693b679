"""The discrete Gaussian, a second time: weights of 300 binary places, exact fractions."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from fractions import Fraction

from tests.reference.wire import word

WORDS = 2**63
POINT = 300
"""Binary places of the weights here."""


def decay(rate: Fraction) -> int:
    """exp(-rate) for a rate below 1, POINT binary places, by its series in integers."""
    term = total = 1 << POINT
    k = 1
    while term:
        term = term * rate.numerator // (rate.denominator * k)
        total += -term if k % 2 else term
        k += 1
    return total


def probabilities(sigma: str, count: int = 150) -> list[Fraction]:
    """Of magnitudes 0, 1, ... of the Gaussian over all integers; few bits of which lie beyond."""
    base = decay(1 / (2 * Fraction(sigma) ** 2))
    weight, step, weights = 1 << POINT, base, [1 << POINT]
    for _ in range(1, count):  # (k + 1)**2 = k**2 + 2 k + 1
        weight, step = weight * step >> POINT, step * base**2 >> 2 * POINT
        weights.append(2 * weight)
    return [Fraction(w, sum(weights)) for w in weights]


@functools.cache
def thresholds(sigma: str = "4.53", bound: int = 40) -> tuple[int, ...]:
    """Of 2**63 words, how many give a magnitude of at most 0, 1, ... up to below the bound."""
    below = list(itertools.accumulate(probabilities(sigma)[: bound + 1]))
    return tuple(math.floor(x / below[-1] * WORDS + Fraction(1, 2)) for x in below[:-1])


def sample(drawn: int, table: tuple[int, ...]) -> int:
    """The last bit of a word is the sign."""
    magnitude = bisect.bisect_right(table, drawn // 2)
    return -magnitude if drawn % 2 else magnitude


@functools.lru_cache(maxsize=64)
def gaussian(key: bytes, count: int) -> list[int]:
    """Samples from the words of stream 0: sigma 4.53, to 9 sigma."""
    return [sample(word(key, 0, i), thresholds()) for i in range(count)]

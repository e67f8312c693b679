"""Discrete Gaussians over the integers of any width, sampled exactly.

    P[Y = y] proportional to exp(-y^2 / (2 v)),   v a whole number, 2**4 to 2**52

A sample is drawn from a discrete Laplace distribution and kept with the probability that turns one
into the other. Each step compares a uniform number, whose first 64 bits are one word of a
keystream, with exp(-a / b) for integers a and b. A compiled loop computes that in floating point,
and decides only if the error cannot matter. Exact arithmetic decides one comparison in 2**35, and
draws further bits as it needs them. So the samples have exactly the distribution, not an
approximation.

The loop's running time depends on the samples. An observer of whole updates learns nothing from it.
Secrets of encryption are drawn from a table instead (`flhe.math.sampling`).

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020
(arXiv 2004.00010), Algorithms 2 and 3; lazily extended uniforms: Karney, ACM TOMS 42 (2016).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.prg import drawn, words
from flhe.math.ring import Elements
from flhe.wire.secret import Random

MIN_VARIANCE, MAX_VARIANCE = 1 << 4, 1 << 52
"""Bounds on the variance: a sample is below 2**31, unless it is 32 standard deviations away."""

SLACK = 2.0**-36
"""Relative error that the compiled loop allows for its exponentials; its own is below 2**-40."""

WORD = 64
SIGN = 63
"""Bit of a word that holds a sample's sign; the lower ones hold its offset."""

Samples = NDArray[np.int32]


def draw(
    count: int, variance: int, random: Random = secrets.token_bytes, *, slack: float = SLACK
) -> Samples:
    """Return independent samples under a fresh key, int32 (count,).

    `slack` above `SLACK` leaves more comparisons to exact arithmetic, and changes no sample.

    Raises ConfigError: a variance that is not an integer from 2**4 to 2**52; a random source that
    gives another number of bytes.
    """
    from flhe.math import gaussian_kernels

    if type(variance) is not int or not MIN_VARIANCE <= variance <= MAX_VARIANCE:
        raise ConfigError(
            f"discrete Gaussian: variance {variance!r}, takes an integer from 2**4 to 2**52"
        )
    out = np.empty(count, np.int32)
    # Fixed counter block. Safe because the key is fresh, and no word is used for two samples.
    stream = words(drawn(random, 32), 0, 1 << 60)
    held, done = next(stream)[1].copy(), 0
    scale = math.isqrt(variance) + 1
    while done < count:
        made, used, undecided = gaussian_kernels.draw(held, scale, variance, slack, out[done:])
        done, held = done + made, held[used:]
        if undecided:
            exact = _exactly(held, scale, variance, random)
            if exact is not None:
                out[done], used = exact
                done, held = done + 1, held[used:]
                continue
        if done < count:
            held = np.concatenate([held, next(stream)[1]])
    return out


def _exactly(held: Elements, scale: int, variance: int, random: Random) -> tuple[int, int] | None:
    """Return one sample by exact arithmetic, and the words that it took; None if they ran out."""
    try:
        return exact_sample((int(word) for word in held), scale, variance, random)
    except StopIteration:
        return None


def exact_sample(
    source: Iterator[int], scale: int, variance: int, random: Random
) -> tuple[int, int]:
    """Return one sample and the number of words of `source` used; StopIteration if they ran out.

    `scale` is that of the Laplace distribution, floor(sigma) + 1. Comparisons that 64 bits do not
    decide take further bits from `random`.
    """
    used, mask = 0, (1 << scale.bit_length()) - 1

    def word() -> int:
        nonlocal used
        used += 1
        return next(source)

    def happens(a: int, b: int) -> bool:
        return _is_below(word(), a, b, lambda: int.from_bytes(drawn(random, WORD // 8), "big"))

    while True:
        first = word()
        while first & mask >= scale:
            first = word()
        if not happens(first & mask, scale):
            continue
        magnitude = first & mask
        while happens(1, 1):
            magnitude += scale
        negative = bool(first >> SIGN)
        if negative and magnitude == 0:  # otherwise zero would have two chances
            continue
        if happens((magnitude * scale - variance) ** 2, 2 * variance * scale**2):
            return (-magnitude if negative else magnitude), used


def _is_below(word: int, a: int, b: int, more: Callable[[], int]) -> bool:
    """Return whether a uniform number in [0, 1) with first 64 bits `word` is below exp(-a / b)."""
    if a == 0:
        return True
    bits, digits = WORD, 40
    while True:
        context = Context(prec=digits)
        probability = context.exp(context.divide(Decimal(-a), Decimal(b)))
        # An exponent of up to 10**6 costs 6 digits; the exponential itself is correctly rounded.
        error = context.multiply(probability, Decimal(10) ** (12 - digits))
        unit = Decimal(1 << bits)
        if context.divide(Decimal(word + 1), unit) <= probability - error:
            return True
        if context.divide(Decimal(word), unit) >= probability + error:
            return False
        word, bits, digits = word << WORD | more(), bits + WORD, digits + 20

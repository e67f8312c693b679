"""Discrete Gaussians over the integers, by comparing every sample with a full table.

A sample is taken from one 64-bit word. 63 bits give its magnitude: the number of table entries that
they are not below. The last bit gives its sign. Magnitude 0 has weight rho(0), magnitude k has 2
rho(k), rho(x) = exp(-x^2 / (2 sigma^2)), so zero needs no rule of its own.

Source: ESAFL, Sec. 5.2.1 (distribution of keys and errors); its ternary keys and narrow errors are
replaced, see docs/protocol.md. The table with its sign bit: FrodoKEM, Frodo.Sample.
"""

from __future__ import annotations

import decimal
import functools
import secrets

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import drawn, words
from flhe.wire.secret import Random

SIGMA = 4.53
"""3.2 sqrt(2): between two honest parties, the knowledge of one leaves noise of 3.2."""

BOUND = 40
"""Largest magnitude of a sample: 9 sigma, rounded down."""

PRECISION = 63
"""Bits of a word that give a magnitude."""

_DIGITS = 60
"""Decimal digits of the weights: three times as many as the thresholds have."""

Samples = NDArray[np.int8]


@functools.cache
def thresholds() -> tuple[int, ...]:
    """Return thresholds k < BOUND: 2**63 times the probability of a magnitude of at most k, rounded.

    The statistical distance of one sample from the Gaussian over all integers is 2^-59.8: 2^-61.4
    is cut off, the rest is thresholds rounded to 63 bits.
    """
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        width = 2 * decimal.Decimal(repr(SIGMA)) ** 2
        weights = [
            (2 if k else 1) * (-decimal.Decimal(k * k) / width).exp() for k in range(BOUND + 1)
        ]
        total, below, entries = sum(weights), decimal.Decimal(0), []
        for weight in weights[:-1]:
            below += weight
            entries.append(int((below / total * 2**PRECISION).to_integral_value()))
    return tuple(entries)


@functools.cache
def _table() -> NDArray[np.int64]:
    """Return thresholds less 1, as the kernel compares them: a multiple of 8."""
    return np.array([t - 1 for t in thresholds()], np.int64)


def fill(key: bytes, start: int, out: Samples) -> None:
    """Write samples start, start + 1, ... under a key, for them alone, into `out`, int8 (count,).

    Sample i is made of word i of stream 0, little-endian: a slice does not depend on how the
    samples are split.
    """
    from flhe.math import sampling_kernels

    # Fixed counter block. Safe because the key is fresh, or derived for these samples alone, and
    # every sample has its own word: no word is used for two.
    for at, part in words(key, start, out.size):
        sampling_kernels.sample(part, _table(), out[at : at + part.size])


def draw(count: int, random: Random = secrets.token_bytes) -> Samples:
    """Return independent samples under a fresh key, int8 (count,).

    Raises ConfigError: a source that gives another number of bytes.
    """
    out = np.empty(count, np.int8)
    fill(drawn(random, 32), 0, out)
    return out

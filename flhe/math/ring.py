"""The Goldilocks field Z_Q, Q = 2**64 - 2**32 + 1.

Field elements are numpy uint64, canonical: below Q. Q - 1 is a multiple of 2**32, so every transform
of up to 2**32 points exists, and 2**64 = 2**32 - 1 modulo Q, which makes products cheap
(`field_kernels`). Arguments are taken to be canonical; only `check` looks.
"""

from __future__ import annotations

import functools

import numpy as np

from flhe.errors import ConfigError, RangeError
from flhe.math.ring_arrays import Elements, Tables, elementwise, root

Q = (1 << 64) - (1 << 32) + 1
"""The Goldilocks prime."""

MAX_POINTS = 1 << 16


def check(elements: Elements) -> None:
    """RangeError unless all are uint64 below Q."""
    if elements.dtype != np.uint64:
        raise RangeError(f"field elements are uint64, got {elements.dtype}")
    if elements.size and int(elements.max()) >= Q:
        raise RangeError("a field element is not below 2**64 - 2**32 + 1")


def add(a: Elements, b: Elements) -> Elements:
    """Sums, element by element, of arrays of one shape."""
    return elementwise("add", a, b, None)


def subtract(a: Elements, b: Elements) -> Elements:
    """Differences a - b, element by element, of arrays of one shape."""
    return elementwise("subtract", a, b, None)


def powers(base: int, count: int) -> Elements:
    """1, base, base**2, ..., shape (count,)."""
    from flhe.math import prime_kernels

    out = np.empty(count, np.uint64)
    prime_kernels.powers(np.uint64(base % Q), np.uint64(0), None, out)
    return out


@functools.cache
def _tables(n: int) -> Tables:
    return Tables.of(powers(root(Q, 2 * n), 2 * n), None, cyclic=True)


def evaluate(coefficients: Elements) -> Elements:
    """Values of polynomials at 1, w, ..., w**(N - 1), w = root(Q, N), in that order.

    `coefficients` are uint64 (..., N), lowest first; N is a power of two up to 2**16.
    """
    n = coefficients.shape[-1]
    if n < 1 or n & (n - 1) or n > MAX_POINTS:
        raise ConfigError(f"evaluate: {n} points, must be a power of two up to {MAX_POINTS}")
    if n == 1:
        return coefficients.copy()
    tables = _tables(n)
    ordered: Elements = tables.forward(coefficients, None)[..., tables.order]
    return ordered

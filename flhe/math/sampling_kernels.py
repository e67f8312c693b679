"""Compiled loops of noise: words into samples, of `flhe.math.sampling` and `flhe.coding.laplace`.

No branch and no index depends on a sample: time and memory accesses are the same for all, and loops
become vector code. They run without the GIL.

Every word of a Gaussian is compared with every entry of the table, eight a pass, so that a pass's
counts fit registers. The logarithm of a Laplace sample is a polynomial.
"""

from __future__ import annotations

import math
from typing import Any

import numba  # noqa: F401 -- whole: a thread in a part of it could wait for one that imports it
import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from flhe.math.field_kernels import clear, inner, njit, wide

_zeros: Any = leading_zeros

_TILE = 1024
_ONE = np.uint64(1)


@inner
def _count(words, table, held):
    """Count for each word, in `held`, how many of eight entries its magnitude bits exceed."""
    wide()
    t0, t1, t2, t3 = table[0], table[1], table[2], table[3]
    t4, t5, t6, t7 = table[4], table[5], table[6], table[7]
    for j in range(words.size):
        x = np.int64(words[j] >> _ONE)
        low = np.int64(x > t0) + np.int64(x > t1) + np.int64(x > t2) + np.int64(x > t3)
        high = np.int64(x > t4) + np.int64(x > t5) + np.int64(x > t6) + np.int64(x > t7)
        held[j] += np.int64(low + high)


@inner
def _signed(words, held, out):
    """Apply to magnitudes the sign in the last bit of each word."""
    wide()
    for j in range(words.size):
        sign = np.int64(-np.int64(words[j] & _ONE))
        out[j] = np.int8(np.int64(held[j] ^ sign) - sign)


@njit
def sample(words, table, out):
    """Turn words uint64 (count,) into samples int8 (count,); `table` int64, 8 k entries."""
    held = np.empty(_TILE, np.int64)
    for at in range(0, words.size, _TILE):
        end = min(at + _TILE, words.size)
        size = end - at
        clear(held[:size])
        for k in range(0, table.size, 8):
            _count(words[at:end], table[k : k + 8], held[:size])
        _signed(words[at:end], held[:size], out[at:end])


# --- Laplace ---

_MANTISSA = np.uint64(12)
"""A word shifted by this is a mantissa of 52 bits."""

_ULP = 2.0**-52
_ROOT = math.sqrt(2)
_LOG2 = math.log(2)
_HALF = math.log(2) / 2


@njit
def _log(m):
    """Return the natural logarithm of 1 <= m <= 2, within 2**-50.

    It is ln(2) / 2 + 2 artanh((m - r) / (m + r)) with r**2 = 2.
    """
    s = (m - _ROOT) / (m + _ROOT)
    z = s * s  # at most 0.0295
    p = 1 / 19 + z * (1 / 21)
    p = 1 / 15 + z * (1 / 17 + z * p)
    p = 1 / 11 + z * (1 / 13 + z * p)
    p = 1 / 7 + z * (1 / 9 + z * p)
    p = 1 / 3 + z * (1 / 5 + z * p)
    return _HALF + 2.0 * s * (1.0 + z * p)


@njit
def _sample(first, second):
    """Return two uniform words as one sample of the Laplace distribution of scale 1.

    The magnitude is -ln(u), u = 2**-(zeros + 1) * m. The first word is the mantissa m, 1 <= m < 2,
    of equal spacing at every magnitude. Leading zeros of the second word are the exponent, at most
    63, and its last bit is the sign. So every magnitude up to 44 has the correct number of words.
    """
    m = 1.0 + (np.float64(np.int64(first >> _MANTISSA)) + 0.5) * _ULP
    zeros = np.float64(np.int64(_zeros(np.uint64(second | _ONE))))
    magnitude = (zeros + 1.0) * _LOG2 - _log(m)
    return magnitude if np.uint64(second & _ONE) == _ONE else -magnitude


@njit
def add(words, values, alpha, edge, grid, scale, most):
    """Cut, put on the grid, add noise, cut again; in place. Return how many lay beyond the edge.

    `values` are finite, float32 (count,), `words` uniform, uint64 (2 * count,). Values are cut at
    `alpha`, and count as cut from `edge` on; `grid` is a power of two. In its steps, `scale` is the
    noise's, and `most` the largest value within alpha, an integer.
    """
    wide()
    beyond = np.int64(0)
    inverse = 1.0 / grid
    for j in range(values.size):
        x = np.float64(values[j])
        beyond += np.int64(abs(x) > edge)
        step = np.rint(min(max(x * inverse, -most), most))
        noise = np.rint(_sample(words[2 * j], words[2 * j + 1]) * scale)
        # Integers below 2**53: the sum is exact, and later rounding leaks nothing more.
        values[j] = np.float32(min(max((step + noise) * grid, -alpha), alpha))
    return beyond

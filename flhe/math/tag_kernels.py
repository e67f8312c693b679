"""Compiled loops of tags: polynomials over the Goldilocks field, dense and sparse."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import inner, mul, njit, plus, wide

_Q = np.uint64((1 << 64) - (1 << 32) + 1)

LIMBS = (22, 21, 21)
"""Bits of the three pieces of a field element, lowest first."""

BLOCK = 512
"""Values of one block: 512 products of 2**31 and 2**22 fit a signed 64-bit sum."""

_LOW = np.int64((1 << 31) - 1)
_SECOND = np.uint64(1 << LIMBS[0])
_HALF = np.uint64(1 << 31)
_THIRD = np.uint64(1 << (LIMBS[0] + LIMBS[1]))


@inner
def _residue(x):
    return np.uint64(x) if x >= 0 else np.uint64(_Q - np.uint64(-x))


@inner
def _joined(a, b, c):
    """Join three signed sums: a + 2**22 b + 2**43 c modulo Q."""
    return plus(_residue(a), plus(mul(_residue(b), _SECOND), mul(_residue(c), _THIRD)))


@inner
def _block(x, count, table):
    """Return the sum of x[:count], int32, times the powers in `table` (3, BLOCK)."""
    wide()
    a = b = c = np.int64(0)
    for i in range(count):
        value = np.int64(x[i])
        a += value * np.int64(table[0, i])
        b += value * np.int64(table[1, i])
        c += value * np.int64(table[2, i])
    return _joined(a, b, c)


@njit
def polynomial(values, split, table, step):
    """Return the sum of values[i] k**i modulo Q, canonical.

    `values` are signed, (n,): of 32 bits at most if `split` is None; of 64 if it is True, taken as
    31 bits, the next 31, and the rest. `table` is int32, (3, BLOCK), the pieces of k**0 to
    k**(BLOCK - 1); `step` is k**BLOCK.
    """
    x = np.empty((3, BLOCK), np.int32)
    low = x[0]
    total = np.uint64(0)
    power = np.uint64(1)
    for start in range(0, values.size, BLOCK):
        part = values[start : start + BLOCK]
        count = part.size
        piece = np.uint64(0)
        if split is None:
            for i in range(count):
                low[i] = part[i]
            piece = _block(low, count, table)
        else:
            for i in range(count):
                value = np.int64(part[i])
                x[0, i] = value & _LOW
                x[1, i] = (value >> 31) & _LOW
                x[2, i] = value >> 62
            for row in range(2, -1, -1):
                piece = plus(_block(x[row], count, table), mul(piece, _HALF))
        total = plus(mul(piece, power), total)
        power = mul(power, step)
    return total


@njit
def sparse_polynomial(values, coords, low, high):
    """Return the sum of values[i] k**coords[i] modulo Q, canonical.

    `coords` are uint32, shape (n,); `low` is k**0 to k**(BLOCK - 1), `high` every BLOCK-th power as
    far as the coordinates go, both uint64.
    """
    total = np.uint64(0)
    for i in range(values.size):
        at = np.int64(coords[i])
        power = mul(low[at % BLOCK], high[at // BLOCK])
        total = plus(mul(_residue(np.int64(values[i])), power), total)
    return total

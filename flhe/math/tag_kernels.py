"""Compiled loops of tags: polynomials over the Goldilocks field, dense and sparse."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import clear, inner, minus, mul, njit, plus, reduced, wide

_Q = np.uint64((1 << 64) - (1 << 32) + 1)

LIMBS = (22, 21, 21)
"""Bits of the three pieces of a field element, lowest first."""

BLOCK = 512
"""Values of one block: 512 products of 2**31 and 2**22 fit a signed 64-bit sum."""

_FEW = 64
"""A sparse vector has few coordinates if it has one in so many, or fewer."""

_LOW = np.int64((1 << 31) - 1)
_HALF = np.uint64(1 << 31)
_MIDDLE = np.uint64(1 << 62)
_THREE_MIDDLES = np.uint64((1 << 62) * (1 + (1 << 22) + (1 << 43)) % int(_Q))


@inner
def _joined(a, b, c):
    """Join three sums within 2**62: a + 2**22 b + 2**43 c modulo Q, by one reduction of 128 bits."""
    a = np.uint64(np.uint64(a) + _MIDDLE)
    b = np.uint64(np.uint64(b) + _MIDDLE)
    c = np.uint64(np.uint64(c) + _MIDDLE)
    one = np.uint64(a + np.uint64(b << np.uint64(22)))
    low = np.uint64(one + np.uint64(c << np.uint64(43)))
    high = np.uint64(np.uint64(b >> np.uint64(42)) + np.uint64(c >> np.uint64(21)))
    carries = np.uint64(1 if one < a else 0) + np.uint64(1 if low < one else 0)
    return minus(reduced(np.uint64(high + carries), low), _THREE_MIDDLES)


@inner
def _block(x, count, table):
    """Return the sums of x[:count], up to 32 bits, times the powers of both elements in `table`.

    Vector units multiply the low halves of 64-bit lanes: the table has such lanes, and its casts
    say that their high halves do not count. So one load serves six products.
    """
    a = b = c = d = e = f = np.int64(0)
    for i in range(count):
        value = np.int64(x[i])
        a += value * np.int64(np.int32(table[0, i]))
        b += value * np.int64(np.int32(table[1, i]))
        c += value * np.int64(np.int32(table[2, i]))
        d += value * np.int64(np.int32(table[3, i]))
        e += value * np.int64(np.int32(table[4, i]))
        f += value * np.int64(np.int32(table[5, i]))
    return _joined(a, b, c), _joined(d, e, f)


@inner
def _two_blocks(x, y, table):
    """Return what `_block` does of both, from one load of the table."""
    wide()
    a = b = c = d = e = f = np.int64(0)
    g = h = k = m = n = o = np.int64(0)
    for i in range(BLOCK):
        one, two = np.int64(x[i]), np.int64(y[i])
        power = np.int64(np.int32(table[0, i]))
        a, g = a + one * power, g + two * power
        power = np.int64(np.int32(table[1, i]))
        b, h = b + one * power, h + two * power
        power = np.int64(np.int32(table[2, i]))
        c, k = c + one * power, k + two * power
        power = np.int64(np.int32(table[3, i]))
        d, m = d + one * power, m + two * power
        power = np.int64(np.int32(table[4, i]))
        e, n = e + one * power, n + two * power
        power = np.int64(np.int32(table[5, i]))
        f, o = f + one * power, o + two * power
    return _joined(a, b, c), _joined(d, e, f), _joined(g, h, k), _joined(m, n, o)


@inner
def _split(part, x, table):
    """Return the sums of a part of 64 bits: of 31 bits, the next 31, and the rest, (3, BLOCK)."""
    for i in range(part.size):
        value = np.int64(part[i])
        x[0, i] = value & _LOW
        x[1, i] = (value >> 31) & _LOW
        x[2, i] = value >> 62
    one = two = np.uint64(0)
    for row in range(2, -1, -1):
        more, beside = _block(x[row], part.size, table)
        one, two = plus(more, mul(one, _HALF)), plus(beside, mul(two, _HALF))
    return one, two


@inner
def _sums(values, split, table, steps):
    """Return the sums over all values, as `polynomials` does."""
    wide()
    held = np.empty((3, 0 if split is None else BLOCK), np.int32)
    squares = np.uint64(mul(steps[0], steps[0])), np.uint64(mul(steps[1], steps[1]))
    first = second = np.uint64(0)
    power = other = np.uint64(1)
    done = values.size // (2 * BLOCK) * (2 * BLOCK) if split is None else 0
    for start in range(0, done, 2 * BLOCK):
        x, y = values[start : start + BLOCK], values[start + BLOCK : start + 2 * BLOCK]
        one, two, more, beside = _two_blocks(x, y, table)
        first = plus(first, mul(plus(one, mul(more, steps[0])), power))
        second = plus(second, mul(plus(two, mul(beside, steps[1])), other))
        power, other = mul(power, squares[0]), mul(other, squares[1])
    for start in range(done, values.size, BLOCK):
        part = values[start : start + BLOCK]
        one = two = np.uint64(0)
        if split is None:
            one, two = _block(part, part.size, table)
        else:
            one, two = _split(part, held, table)
        first, power = plus(first, mul(one, power)), mul(power, steps[0])
        second, other = plus(second, mul(two, other)), mul(other, steps[1])
    return first, second


@njit
def polynomials(values, split, table, steps):
    """Return the sums of values[i] k**i modulo Q, canonical, for two elements k.

    `values` are signed, (n,): of 32 bits at most if `split` is None; of 64 if it is True. `table`
    is int64, (6, BLOCK), the pieces of k**0 to k**(BLOCK - 1) of the first element, then of the
    second; `steps` are their k**BLOCK.
    """
    return _sums(values, split, table, steps)


@inner
def _reach(coords, low, high, end):
    """Return the place of the first coordinate from `end` on, from `low` to `high`."""
    while low < high:
        middle = (low + high) // 2
        if np.int64(coords[middle]) < end:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def sparse_polynomials(values, coords, split, table, steps):
    """Return the sums of values[i] k**(coords[i] - s), like `polynomials`.

    `coords` are uint32, (n,), ascending; s is the largest multiple of BLOCK up to the first. Blocks
    are laid out with their zeros, eight at a time unless coordinates are few: that is cheaper than
    a power for each coordinate.
    """
    start = np.int64(coords[0]) // BLOCK * BLOCK if coords.size else np.int64(0)
    last = np.int64(coords[-1]) if coords.size else np.int64(0)
    doublings = 3 if split is None and coords.size * _FEW > last - start else 0
    held = np.empty(BLOCK << doublings, values.dtype)
    x = np.empty((3, 0 if split is None else BLOCK), np.int32)
    low = np.uint64(held.size - 1)
    jumps = np.empty(2, np.uint64)
    for j in range(2):
        jumps[j] = steps[j]
        for _ in range(doublings):
            jumps[j] = mul(jumps[j], jumps[j])
    first = second = np.uint64(0)
    power = other = np.uint64(1)
    at = np.int64(0)
    while at < values.size:
        end = start + held.size
        if np.int64(coords[at]) < end:
            stop = at + 1
            if doublings:
                stop = _reach(coords, stop, min(at + held.size, coords.size), end)
            else:
                while stop < coords.size and np.int64(coords[stop]) < end:
                    stop += 1
            clear(held)
            for i in range(at, stop):
                held[np.uint64(np.uint64(coords[i]) - np.uint64(start)) & low] = values[i]
            at = stop
            one = two = np.uint64(0)
            if split is None:
                if doublings:
                    one, two = _sums(held, split, table, steps)
                else:
                    one, two = _block(held, BLOCK, table)
            else:
                one, two = _split(held, x, table)
            first, second = plus(first, mul(one, power)), plus(second, mul(two, other))
        power, other = mul(power, jumps[0]), mul(other, jumps[1])
        start = end
    return first, second

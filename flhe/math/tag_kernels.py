"""Compiled loops of tags: polynomials over the Goldilocks field, dense and sparse."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import clear, inner, minus, mul, njit, plus, reduced, wide

_Q = np.uint64((1 << 64) - (1 << 32) + 1)

BLOCK = 512
"""Values of one block: so many products of 2**22 and 2**31 add up to 2**62 at most."""

DIGIT = 22
"""Bits, sign apart, of the values that are multiplied: longer ones are cut into digits."""

_FEW = 64
"""A sparse vector has few coordinates if it has one in so many, or fewer."""

_LOW = np.int64((1 << DIGIT) - 1)
_BASE = np.uint64(1 << DIGIT)
_MIDDLE = np.uint64(1 << 62)
_BOTH_MIDDLES = np.uint64((1 << 62) * (1 + (1 << 32)) % int(_Q))


@inner
def _joined(a, b):
    """Join two sums within 2**62: a + 2**32 b modulo Q, by one reduction of 128 bits."""
    a = np.uint64(np.uint64(a) + _MIDDLE)
    b = np.uint64(np.uint64(b) + _MIDDLE)
    low = np.uint64(a + np.uint64(b << np.uint64(32)))
    high = np.uint64(np.uint64(b >> np.uint64(32)) + np.uint64(1 if low < a else 0))
    return minus(reduced(high, low), _BOTH_MIDDLES)


@inner
def _block(x, count, table):
    """Return the sums of x[:count], within 2**DIGIT, times the powers of both elements in `table`.

    Vector units multiply the low halves of 64-bit lanes: the table has such lanes, and its casts
    say that their high halves do not count. So one load serves four products.
    """
    a = b = c = d = np.int64(0)
    for i in range(count):
        value = np.int64(x[i])
        a += value * np.int64(np.int32(table[0, i]))
        b += value * np.int64(np.int32(table[1, i]))
        c += value * np.int64(np.int32(table[2, i]))
        d += value * np.int64(np.int32(table[3, i]))
    return _joined(a, b), _joined(c, d)


@inner
def _two_blocks(x, y, table):
    """Return what `_block` does of both, from one load of the table."""
    wide()
    a = b = c = d = e = f = g = h = np.int64(0)
    for i in range(BLOCK):
        one, two = np.int64(x[i]), np.int64(y[i])
        power = np.int64(np.int32(table[0, i]))
        a, e = a + one * power, e + two * power
        power = np.int64(np.int32(table[1, i]))
        b, f = b + one * power, f + two * power
        power = np.int64(np.int32(table[2, i]))
        c, g = c + one * power, g + two * power
        power = np.int64(np.int32(table[3, i]))
        d, h = d + one * power, h + two * power
    return _joined(a, b), _joined(c, d), _joined(e, f), _joined(g, h)


@inner
def _split(part, digits, table):
    """Return the sums of a part with longer values, cut into as many digits as there are rows."""
    one = two = np.uint64(0)
    last = digits.shape[0] - 1
    for row in range(last, -1, -1):
        by = np.int64(DIGIT * row)
        for i in range(part.size):
            value = np.int64(part[i]) >> by
            digits[row, i] = value if row == last else value & _LOW
        more, beside = _block(digits[row], part.size, table)
        one, two = plus(more, mul(one, _BASE)), plus(beside, mul(two, _BASE))
    return one, two


@inner
def _short(x, longer):
    """Return whether all values lie between -2**DIGIT and 2**DIGIT - 1."""
    if longer is None:
        return True
    wide()
    above, beyond = np.uint32(0), np.uint64(0)
    if x.itemsize > 4:
        for i in range(x.size):
            beyond |= np.uint64(np.uint64(x[i]) + _BASE)
    else:
        for i in range(x.size):
            above = np.uint32(above | np.uint32(np.uint32(x[i]) + np.uint32(_BASE)))
    return max(np.uint64(above), beyond) < np.uint64(2 * _BASE)


@inner
def _one(part, digits, longer, table):
    """Return the sums of at most one block."""
    if _short(part, longer):
        return _block(part, part.size, table)
    return _split(part, digits, table)


@inner
def _digits(values, longer):
    """Return room for the digits of a block: two of 32 bits, three of 64."""
    return np.empty((3 if values.itemsize > 4 else 2, 0 if longer is None else BLOCK), np.int32)


@inner
def _sums(values, longer, digits, table, steps):
    """Return the sums over all values, as `polynomials` does."""
    wide()
    squares = np.uint64(mul(steps[0], steps[0])), np.uint64(mul(steps[1], steps[1]))
    first = second = np.uint64(0)
    power = other = np.uint64(1)
    done = values.size // (2 * BLOCK) * (2 * BLOCK)
    short = True
    for start in range(0, done, 2 * BLOCK):
        x, y = values[start : start + BLOCK], values[start + BLOCK : start + 2 * BLOCK]
        if short:
            one, two, more, beside = _two_blocks(x, y, table)
            # Checked afterwards, when they are in the nearest cache: if some are longer, the sums may
            # have overflowed, and are made anew.
            short = _short(values[start : start + 2 * BLOCK], longer)
        if not short:
            one, two = _split(x, digits, table)
            more, beside = _split(y, digits, table)
        first = plus(first, mul(plus(one, mul(more, steps[0])), power))
        second = plus(second, mul(plus(two, mul(beside, steps[1])), other))
        power, other = mul(power, squares[0]), mul(other, squares[1])
    for start in range(done, values.size, BLOCK):
        one, two = _one(values[start : start + BLOCK], digits, longer, table)
        first, power = plus(first, mul(one, power)), mul(power, steps[0])
        second, other = plus(second, mul(two, other)), mul(other, steps[1])
    return first, second


@njit
def polynomials(values, longer, table, steps):
    """Return the sums of values[i] k**i modulo Q, canonical, for two elements k.

    `values` are signed, (n,); `longer` is None if their type has at most DIGIT bits, else True.
    `table` is int64, (4, BLOCK): signed low and high halves of k**0 to k**(BLOCK - 1), of the first
    element, then of the second; `steps` are their k**BLOCK.
    """
    return _sums(values, longer, _digits(values, longer), table, steps)


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
def sparse_polynomials(values, coords, longer, table, steps):
    """Return the sums of values[i] k**(coords[i] - s), like `polynomials`.

    `coords` are uint32, (n,), ascending; s is the largest multiple of BLOCK up to the first. Blocks
    are laid out with their zeros, eight at a time unless coordinates are few: that is cheaper than
    a power for each coordinate.
    """
    start = np.int64(coords[0]) // BLOCK * BLOCK if coords.size else np.int64(0)
    last = np.int64(coords[-1]) if coords.size else np.int64(0)
    doublings = 3 if coords.size * _FEW > last - start else 0
    held = np.empty(BLOCK << doublings, values.dtype)
    digits = _digits(values, longer)
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
            if doublings:
                one, two = _sums(held, longer, digits, table, steps)
            else:
                one, two = _one(held, digits, longer, table)
            first, second = plus(first, mul(one, power)), plus(second, mul(two, other))
        power, other = mul(power, jumps[0]), mul(other, jumps[1])
        start = end
    return first, second

"""Compiled loops over coordinates: writing to them, splitting at them, permuting them, coding them.

Unsigned indices keep numba from adding checks for negative ones.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import inner, njit
from flhe.math.sparse_kernels import lowest

_BLOCK = 1024
"""Coordinates that are permuted at a time: they stay in a core's first cache."""


@njit
def scatter(coords, values, out):
    """Write values to out[coords]; return false unless coordinates ascend and lie within."""
    before = np.int64(-1)
    for i in range(coords.size):
        at = np.int64(coords[i])
        if at <= before or at >= out.size:
            return False
        before = at
        out[np.uint64(at)] = values[i]
    return True


@njit
def gather(lanes, coords, start, out):
    """Read the lane of each coordinate, ascending, out of the lanes from `start` on."""
    for i in range(coords.size):
        out[i] = lanes[np.uint64(coords[i]) - start]


@njit
def scatter_add(coords, values, start, out):
    """Add values at their coordinates to lanes from `start` on, modulo the lane."""
    for i in range(coords.size):
        at = np.uint64(np.uint64(coords[i]) - start)
        out[at] = out[at] + values[i]


@njit
def add_where(words, other, lanes, out, less):
    """Add or subtract lanes at bits that `words` has and `other` has not; 64 lanes a word."""
    for w in range(words.size):
        bits = np.uint64(words[w] & ~other[w])
        base = np.uint64(w) * np.uint64(64)
        while bits != np.uint64(0):
            at = base + np.uint64(lowest(bits))
            out[at] = out[at] - lanes[at] if less else out[at] + lanes[at]
            bits = np.uint64(bits & np.uint64(bits - np.uint64(1)))


@njit
def apart(values, coords, chosen, rest):
    """Split `values`: those at `coords` (ascending, in range) to `chosen`, others to `rest`."""
    start = 0
    at = 0
    for i in range(coords.size):
        stop = coords[i]
        for d in range(start, stop):
            rest[at] = values[d]
            at += 1
        chosen[i] = values[stop]
        start = stop + 1
    for d in range(start, values.size):
        rest[at] = values[d]
        at += 1


@njit
def together(chosen, rest, coords, values):
    """Invert `apart`, into `values`."""
    start = 0
    at = 0
    for i in range(coords.size):
        stop = coords[i]
        for d in range(start, stop):
            values[d] = rest[at]
            at += 1
        values[stop] = chosen[i]
        start = stop + 1
    for d in range(start, values.size):
        values[d] = rest[at]
        at += 1


@njit
def place(items, ranks, out):
    """Put every item at its rank."""
    for i in range(items.size):
        out[ranks[i]] = items[i]


@njit
def place_all(items, coords, places, out):
    """Put every item at its place; return false unless their coordinates ascend."""
    before = np.int64(-1)
    fits = np.uint8(1)
    for i in range(items.size):
        fits &= np.uint8(np.int64(coords[i]) > before)
        before = np.int64(coords[i])
        out[places[i]] = items[i]
    return fits == 1


@njit
def shuffle(picks, table):
    """Shuffle (Fisher-Yates): swap the last place with place picks[last], down to the second."""
    for last in range(table.size - 1, 0, -1):
        pick = picks[last]
        table[last], table[pick] = table[pick], table[last]


@inner
def _rounds(left, right, rows, columns, tables, first):
    for r in range(tables.shape[0]):
        table = tables[r]
        if (r + first) & 1:
            for i in range(left.size):
                x = np.uint32(right[i] + table[left[i]])
                right[i] = min(x, np.uint32(x - columns))
        else:
            for i in range(left.size):
                x = np.uint32(left[i] + table[right[i]])
                left[i] = min(x, np.uint32(x - rows))


@njit
def feistel(coords, length, rows, columns, tables, first, out):
    """Run an alternating Feistel network over Z_rows x Z_columns until it lands below `length`.

    Round r adds tables[r] of one half to the other; `first` is 0 if round 0 changes the left half.
    Both halves lie below their moduli before and after. So x - modulus either reduces the sum or
    wraps to a larger number: the minimum is right in both cases.
    """
    left, right = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    inverse = 1.0 / np.float64(columns)
    for start in range(0, coords.size, _BLOCK):
        size = min(_BLOCK, coords.size - start)
        part, target = coords[start : start + size], out[start : start + size]
        a, b = left[:size], right[:size]
        for i in range(size):
            # Exact for 31 bits: the half keeps the quotient off every integer by 0.5 / columns.
            a[i] = np.uint32(np.int32((np.float64(np.int32(part[i])) + 0.5) * inverse))
            b[i] = np.uint32(part[i] - np.uint32(a[i] * columns))
        _rounds(a, b, rows, columns, tables, first)
        for i in range(size):
            target[i] = np.uint32(np.uint32(a[i] * columns) + b[i])
        for i in range(size):
            while target[i] >= length:
                one, other = a[i : i + 1], b[i : i + 1]
                _rounds(one, other, rows, columns, tables, first)
                target[i] = np.uint32(np.uint32(one[0] * columns) + other[0])


@njit
def gaps_of(coords, length, gaps):
    """Count the coordinates skipped before each; return false unless they ascend below `length`."""
    following = np.int64(0)
    fits = True
    for i in range(coords.size):
        at = np.int64(coords[i])
        fits &= (at >= following) & (at < length)
        gaps[i] = np.uint32(at - following)
        following = at + 1
    return fits


@njit
def rice_bits(gaps, parameter):
    """Return the bits that Rice coding with `parameter` takes."""
    total = np.uint64(gaps.size) * np.uint64(parameter + 1)
    for i in range(gaps.size):
        total += np.uint64(gaps[i] >> np.uint32(parameter))
    return np.int64(total)


@njit
def rice_write(gaps, parameter, words):
    """Write each gap: gap >> parameter zeros, a one, its low bits; `words` has a spare word."""
    p = np.uint64(parameter)
    low = (np.uint64(1) << p) - np.uint64(1)
    at = np.uint64(0)
    for i in range(gaps.size):
        gap = np.uint64(gaps[i])
        at += gap >> p
        code = np.uint64(1) | ((gap & low) << np.uint64(1))
        w = at >> np.uint64(6)
        shift = at & np.uint64(63)
        words[w] |= code << shift
        words[w + np.uint64(1)] |= (code >> np.uint64(1)) >> (np.uint64(63) - shift)
        at += p + np.uint64(1)


@njit
def rice_read(words, nbits, parameter, length, coords):
    """Invert `rice_write`; return the number of bits read, or -1 for an invalid set.

    `words` has two zero words after the `nbits` bits; `coords` has room for all coded coordinates.
    """
    p = np.uint64(parameter)
    one = np.uint64(1)
    low = (one << p) - one
    end = np.uint64(nbits)
    bound = np.uint64(length)
    at = np.uint64(0)
    following = np.uint64(0)
    for i in range(coords.size):
        w = at >> np.uint64(6)
        word = words[w] & (~np.uint64(0) << (at & np.uint64(63)))
        while word == 0:
            w += one
            if (w << np.uint64(6)) >= end:
                return -1
            word = words[w]
        stop = (w << np.uint64(6)) + np.uint64(lowest(word))
        zeros = stop - at
        at = stop + one
        if at + p > end:
            return -1
        w = at >> np.uint64(6)
        shift = at & np.uint64(63)
        rest = (words[w] >> shift) | ((words[w + one] << one) << (np.uint64(63) - shift))
        at += p
        following += (zeros << p) | (rest & low)
        if following >= bound:
            return -1
        coords[i] = np.uint32(following)
        following += one
    return np.int64(at)

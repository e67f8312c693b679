"""Compiled loops of sparse updates: choosing values, and sets of coordinates as bitmaps.

Bitmaps are words of 64 bits, coordinate d being bit d % 64 of word d // 64. A set out of a million
fits a core's own cache, and its members come out in order.

Magnitudes are compared as integers: the bits of a float without its sign, in which NaN and infinity
are the largest. Unsigned indices keep numba from adding checks for negative ones.
"""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401 -- whole: a thread in a part of it could wait for one that imports it
import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from flhe.math.field_kernels import copy, inner, njit

lowest: Any = trailing_zeros
"""Number of the lowest set bit."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
# numba compiles functions once more for arguments that are literal numbers in its callers.
_NONE = np.int32(0)
_START = np.int64(0)
_WIDTH = np.int64(31)
_BLOCK = 1024
"""Values that are processed at a time: they stay in a core's first cache."""

SAMPLE = 4096
"""Sample size for guessing a threshold; layers up to twice this are searched directly."""

_SPREAD = 3.5
"""Standard deviations between the guess and the sample's own threshold."""


@inner
def _popcount(x):
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit
def size_of(words):
    """Return the number of members of a bitmap."""
    total = 0
    for w in range(words.size):
        total += _popcount(words[w])
    return total


@inner
def _kth(keys, size, rank, width):
    """Return the key of `rank` (1: largest) among keys[:size] of `width` bits; overwrites them."""
    radix = 11 if size > _BLOCK else 6
    tally = np.empty(1 << radix, np.int32)
    found = np.int64(0)
    while width > 0:
        shift = max(width - radix, 0)
        rest = (1 << width) - 1
        for t in range(tally.size):
            tally[t] = 0
        for i in range(size):
            tally[np.uint64((keys[i] & rest) >> shift)] += 1
        digit = (1 << radix) - 1
        while tally[digit] < rank:
            rank -= tally[digit]
            digit -= 1
        found |= digit << shift
        kept = 0
        for i in range(size):
            key = keys[i]
            keys[kept] = key
            kept += ((key & rest) >> shift) == digit
        size = kept
        width = shift
    return found


@inner
def _ranked(bits, rank, otherwise):
    """Return the magnitude of `rank` among all of `bits`; `otherwise` if there is none."""
    if not 1 <= rank <= bits.size:
        return np.int64(otherwise)
    keys = np.empty(bits.size, np.int32)
    for i in range(bits.size):
        keys[i] = bits[i] & _MAGNITUDE
    return _kth(keys, np.int64(bits.size), rank, _WIDTH)


@inner
def _guess(x, old, keep, sample, seen):
    """Return two magnitudes: very likely, `keep` or more values exceed one, and fewer the other.

    `sample` has room for SAMPLE values; `seen` is the same as integers.
    """
    if x.size <= 2 * SAMPLE:
        return np.int32(0), _MAGNITUDE
    step = x.size / SAMPLE
    for i in range(SAMPLE):
        at = np.uint64(i * step)
        sample[i] = x[at] + old[at] if old.size else x[at]
    share = keep / x.size
    spread = _SPREAD * np.sqrt(share * (1 - share) * SAMPLE) + 1
    below, above = int(share * SAMPLE + spread) + 1, int(share * SAMPLE - spread)
    low, high = _ranked(seen, below, _NONE), _ranked(seen, above, _MAGNITUDE)
    # One more than the guess: if many values share it, zero above all, they are among the searched
    # ones.
    return np.int32(low), np.int32(min(high + 1, np.int64(_MAGNITUDE)))


@inner
def _add(x, old, out):
    for i in range(x.size):
        out[i] = x[i] + old[i]


@inner
def _mark(bits, low, halves):
    for h in range(bits.size >> 5):
        chunk = bits[h << 5 : (h << 5) + 32]
        half = np.uint32(0)
        for j in range(32):
            hit = np.uint32((chunk[j] & _MAGNITUDE) >= low)
            half |= np.uint32(hit << np.uint32(j))
        halves[h] = half


@inner
def _add_and_mark(x, old, low, out, bits, words, halves):
    """Add into `out`; mark magnitudes of at least `low` in a bitmap and return their number.

    `bits` is `out` as integers, `halves` is `words` as uint32. These are separate functions, a block
    at a time, because the compiler vectorises loops only on plain slices.
    """
    for h in range(x.size >> 5, halves.size):
        halves[h] = 0
    for start in range(0, x.size, _BLOCK):
        stop = min(start + _BLOCK, x.size)
        if old.size:
            _add(x[start:stop], old[start:stop], out[start:stop])
        else:
            copy(x[start:stop], out[start:stop])
        _mark(bits[start:stop], low, halves[start >> 5 : stop >> 5])
    for i in range(x.size & ~31, x.size):
        hit = np.uint32((bits[i] & _MAGNITUDE) >= low)
        halves[i >> 5] |= np.uint32(hit << np.uint32(i & 31))
    return size_of(words)


@inner
def _threshold(bits, words, low, high, keep, candidates):
    """Return the `keep`-th largest magnitude; -1 if `high` is too low, -2 for NaN or infinity.

    Writes the marked coordinates, ascending. Those of at least `high` are counted; only the few
    between the two guesses are searched.
    """
    unsure = np.empty(candidates.size, np.int32)
    found = few = _START
    peak = np.int32(0)
    for w in range(words.size):
        word = words[w]
        base = np.uint32(w << 6)
        while word:
            i = np.uint32(base + np.uint32(lowest(word)))
            word &= word - np.uint64(1)
            key = np.int32(bits[i] & _MAGNITUDE)
            candidates[found] = i
            found += 1
            unsure[few] = key - low
            few += key < high
            peak = max(peak, key)
    if peak >= _INFINITE:
        return np.int64(-2)
    rank = keep - (found - few)
    if rank < 1:
        return np.int64(-1)
    width = _START
    while ((high - low) >> width) > 0:
        width += 1
    return np.int64(low) + _kth(unsure, few, rank, width)


@inner
def _take(candidates, threshold, keep, start, coords, values, out, bits):
    """Move the `keep` largest candidates out of `out`; targets have one place more than they fill.

    Without branches, which would be unpredictable: the next value overwrites one that is not
    chosen.
    """
    equal = np.int64(keep)
    for i in candidates:
        equal -= (bits[i] & _MAGNITUDE) > threshold
    written = 0
    for i in candidates:
        key = bits[i] & _MAGNITUDE
        tied = (key == threshold) & (equal > 0)
        equal -= tied
        chosen = (key > threshold) | tied
        value = out[i]
        coords[written] = np.uint32(start + i)
        values[written] = value
        out[i] = np.float32(0) if chosen else value
        written += chosen


@njit
def top_k(x, old, starts, keep, words, halves, sample, seen, coords, values, out, bits):
    """Find the keep[l] largest magnitudes of x + old in every layer l; false for NaN or infinity.

    `starts` holds the starts of layers, and the end; `old` may be empty, for zeros. Writes
    coordinates ascending, their values, and into `out` the sum without them; `bits` is `out` as
    integers. Of equal magnitudes the lowest coordinates are taken. `words`, a bitmap of the largest
    layer, and `sample`, of SAMPLE values, are overwritten; `halves` and `seen` are the same as
    uint32 and int32.
    """
    written = 0
    for layer in range(keep.size):
        start, stop, k = starts[layer], starts[layer + 1], keep[layer]
        if k == 0:
            continue
        part, ints, total = x[start:stop], bits[start:stop], out[start:stop]
        rest = old[start:stop] if old.size else old
        size = (stop - start + 63) >> 6
        marks, pairs = words[:size], halves[: 2 * size]
        low, high = _guess(part, rest, k, sample, seen)
        candidates = np.empty(0, np.uint32)
        threshold = np.int64(-1)
        while threshold == -1:  # once, except after a bad guess
            count = _add_and_mark(part, rest, low, total, ints, marks, pairs)
            if count >= k:
                candidates = np.empty(count, np.uint32)
                threshold = _threshold(ints, marks, low, high, k, candidates)
            else:
                low = np.int32(0)
            high = _MAGNITUDE
        if threshold < 0:
            return False
        end = written + k + 1
        _take(
            candidates, threshold, k, start, coords[written:end], values[written:end], total, ints
        )
        written += k
    return True


@njit
def mark(coords, words):
    """Set the bits of `coords`, which must lie within."""
    for i in range(coords.size):
        c = coords[i]
        words[c >> np.uint32(6)] |= np.uint64(1) << np.uint64(c & np.uint32(63))


@njit
def members(words, coords):
    """Write the members of a bitmap, ascending; `coords` has room for exactly all of them."""
    found = 0
    for w in range(words.size):
        word = words[w]
        base = np.uint32(w << 6)
        while word:
            coords[found] = np.uint32(base + np.uint32(lowest(word)))
            word &= word - np.uint64(1)
            found += 1


@njit
def rank(coords, words, starts, ordered, ranks):
    """Sort `coords` into `ordered`, and write each one's place there to `ranks`.

    `words` is an empty bitmap, `starts` has room for as many counts. A coordinate's place is the
    number of members below it: those of the words before, and of its own word's lower bits. False
    for a repeated coordinate.
    """
    mark(coords, words)
    total = 0
    for w in range(words.size):
        starts[w] = total
        total += _popcount(words[w])
    if total != coords.size:
        return False
    members(words, ordered)
    for i in range(coords.size):
        c = coords[i]
        w = c >> np.uint32(6)
        below = (np.uint64(1) << np.uint64(c & np.uint32(63))) - np.uint64(1)
        ranks[i] = np.uint32(starts[w] + _popcount(words[w] & below))
    return True

"""Compiled loops of `flhe.coding.slots`: fields of a few bits in rows of bytes.

A row holds `per` fields of `width` bits (at most 56), the first one lowest, little-endian. A field
is the value plus an offset, so it is never negative. Loops run without the GIL.
"""

from __future__ import annotations

import numba
import numpy as np

njit = numba.njit(nogil=True, cache=True)


@njit
def pack(values, width, per, out):
    """Values, shape (n,), into rows, shape (ceil(n / per), bytes); other fields stand for 0."""
    offset = np.int64(1) << np.int64(width - 1)
    n = values.size
    for row in range(out.shape[0]):
        held = np.uint64(0)
        bits = 0
        at = 0
        first = row * per
        for k in range(per):
            field = offset
            if first + k < n:
                field += np.int64(values[first + k])
            held |= np.uint64(field) << np.uint64(bits)
            bits += width
            while bits >= 8:
                out[row, at] = np.uint8(held & np.uint64(255))
                at += 1
                held >>= np.uint64(8)
                bits -= 8
        while at < out.shape[1]:
            out[row, at] = np.uint8(held & np.uint64(255))
            at += 1
            held >>= np.uint64(8)


@njit
def unpack(rows, width, per, limit, out):
    """Inverse of `pack`; gives how many are above the limit, below it, and not 0 beyond the end."""
    offset = np.int64(1) << np.int64(width - 1)
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    n = out.size
    above = 0
    below = 0
    stray = 0
    for row in range(rows.shape[0]):
        held = np.uint64(0)
        bits = 0
        at = 0
        first = row * per
        for k in range(per):
            while bits < width:
                held |= np.uint64(rows[row, at]) << np.uint64(bits)
                at += 1
                bits += 8
            value = np.int64(held & mask) - offset
            held >>= np.uint64(width)
            bits -= width
            if value > limit:
                above += 1
            elif value < -limit:
                below += 1
            if first + k < n:
                out[first + k] = value
            elif value != 0:
                stray += 1
    return above, below, stray

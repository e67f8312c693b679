"""Compiled loops over the coordinates of a sparse vector: read masks at them, add to them.

As in `flhe.math.kernels`, all of them release the GIL and are called on slices. Coordinates ascend
and are unsigned, so that numba adds no check for negative ones.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

_lowest: Any = trailing_zeros
_njit = numba.njit(nogil=True, cache=True, error_model="numpy")


@_njit
def gather(lanes, coords, start, out):
    """Read the mask of each coordinate out of the lanes from `start` on."""
    for i in range(coords.size):
        out[i] = lanes[np.uint64(coords[i]) - start]


@_njit
def scatter_add(coords, values, out):
    """Add each value at its coordinate, modulo the lane."""
    for i in range(coords.size):
        at = np.uint64(coords[i])
        out[at] = out[at] + values[i]


@_njit
def add_where(words, other, lanes, out, less):
    """Add or subtract lanes at bits that `words` has and `other` has not; 64 lanes a word."""
    for w in range(words.size):
        bits = np.uint64(words[w] & ~other[w])
        base = np.uint64(w) * np.uint64(64)
        while bits != np.uint64(0):
            at = base + np.uint64(_lowest(bits))
            out[at] = out[at] - lanes[at] if less else out[at] + lanes[at]
            bits = np.uint64(bits & np.uint64(bits - np.uint64(1)))

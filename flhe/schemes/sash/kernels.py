"""Compiled loops of SASH: values under masks, in place."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide


@njit
def mask(values, guard, lanes):
    """Add signed values * 2**guard to masks modulo 2**32; lanes uint32, both (count,)."""
    wide()
    up = np.uint32(guard)
    for i in range(lanes.size):
        lanes[i] = np.uint32(lanes[i] + np.uint32(np.uint32(values[i]) << up))


@njit
def unmask(data, guard, lanes):
    """Turn masks into what `data`, a masked sum, holds, as int32; return the largest error.

    The error of the homomorphism lies in the guard bits; values are rounded to nearest. `data` and
    lanes are uint32, (count,), in different memory.
    """
    wide()
    half, low, down = np.uint32(1 << (guard - 1)), np.uint32((1 << guard) - 1), np.int32(guard)
    least, most = np.int32(0), np.int32(0)
    for i in range(lanes.size):
        x = np.uint32(np.uint32(data[i] - lanes[i]) + half)
        error = np.int32(np.int32(np.uint32(x & low)) - np.int32(half))
        least, most = min(least, error), max(most, error)
        lanes[i] = np.uint32(np.int32(np.int32(x) >> down))
    return max(most, -least)

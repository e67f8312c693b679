"""Inner products modulo 2**64 without their low half, compiled: the masks of SASH's paper."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide

_WORD = np.uint64(32)


@njit
def lwr_masks(k, a, out):
    """Inner products of k with the rows of a modulo 2**64, without their low 32 bits.

    k uint64 (mu,), a uint64 (count, mu), out uint32 (count,).
    """
    wide()
    for r in range(out.size):
        row = a[r]
        total = np.uint64(0)
        for i in range(row.size):
            total += np.uint64(row[i] * k[i])
        out[r] = np.uint32(total >> _WORD)

"""Compiled loop of `flhe.rounds.tags`: inner products over the Goldilocks field."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import mul, njit, plus

_Q = np.uint64((1 << 64) - (1 << 32) + 1)


@njit
def product(values, words, start):
    """Start + sum over d of x_d words[d], canonical.

    `values` are signed integers, shape (n,); `words` any uint64, shape (n,), taken modulo Q.
    """
    out = np.uint64(start)
    for d in range(values.size):
        x = np.int64(values[d])
        residue = np.uint64(x) if x >= 0 else np.uint64(_Q - np.uint64(-x))
        out = plus(mul(residue, words[d]), out)
    return out

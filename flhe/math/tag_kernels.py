"""Compiled loop of `flhe.schemes.tags`: inner products over the Goldilocks field, batch by batch."""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import mul, njit, plus

_Q = np.uint64((1 << 64) - (1 << 32) + 1)


@njit
def products(values, per, words, out):
    """Batch j's sum over k of v_k words[j, k] into out[j], canonical.

    `values` are signed integers, shape (n,), `per` of them a batch; `words` any uint64 modulo Q, shape
    (batches, at least per); `out` uint64, shape (batches,).
    """
    for j in range(out.size):
        total = np.uint64(0)
        start = j * per
        for k in range(min(per, values.size - start)):
            x = np.int64(values[start + k])
            residue = np.uint64(x) if x >= 0 else np.uint64(_Q - np.uint64(-x))
            total = plus(mul(residue, words[j, k]), total)
        out[j] = total

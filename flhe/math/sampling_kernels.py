"""Compiled loops of `flhe.math.sampling`: words into samples, in constant time.

Every word is compared with every entry of the table, GROUP entries a pass, so that what a pass keeps
fits registers. Loops run without the GIL.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide

_TILE = 1024
_ONE = np.uint64(1)


@njit
def _count(words, table, held):
    """Add to `held` how many of the GROUP entries the magnitude bits of each word exceed."""
    wide()
    t0, t1, t2, t3 = table[0], table[1], table[2], table[3]
    t4, t5, t6, t7 = table[4], table[5], table[6], table[7]
    for j in range(words.size):
        x = np.int64(words[j] >> _ONE)
        low = np.int64(x > t0) + np.int64(x > t1) + np.int64(x > t2) + np.int64(x > t3)
        high = np.int64(x > t4) + np.int64(x > t5) + np.int64(x > t6) + np.int64(x > t7)
        held[j] += np.int64(low + high)


@njit
def _signed(words, held, out):
    """Magnitudes with the sign that the last bit of each word says."""
    wide()
    for j in range(words.size):
        sign = np.int64(-np.int64(words[j] & _ONE))
        out[j] = np.int8(np.int64(held[j] ^ sign) - sign)


@njit
def sample(words, table, out):
    """Words uint64 (count,) into samples int8 (count,); `table` int64, a multiple of GROUP entries."""
    held = np.empty(_TILE, np.int64)
    for at in range(0, words.size, _TILE):
        end = min(at + _TILE, words.size)
        size = end - at
        held[:size] = 0
        for k in range(0, table.size, 8):
            _count(words[at:end], table[k : k + 8], held[:size])
        _signed(words[at:end], held[:size], out[at:end])

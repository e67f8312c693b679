"""Compiled loops of `flhe.coding.coefficients` for one modulus below 2**64: a coefficient is a word.

Two slots a coefficient, which is what Goldilocks' preset has, go through vector units. Loops run
without the GIL.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@njit
def _added(a, b, q):
    """Sum modulo any q < 2**64, canonical in and out."""
    return np.uint64(np.uint64(a - np.uint64(q - b)) if a >= np.uint64(q - b) else a + b)


@njit
def _lift_pairs(values, bound, width, log_p, noise, q, row):
    wide()
    up, top = np.int64(width), np.int64(log_p)
    for j in range(row.size):
        low = np.int64(np.int64(values[2 * j]) + bound)
        upper = np.int64(np.int64(values[2 * j + 1]) + bound)
        x = np.int64(np.int64(low + np.int64(upper << up)) + np.int64(np.int64(noise[j]) << top))
        y = np.uint64(np.uint64(x) + q) if x < 0 else np.uint64(x)
        row[j] = _added(row[j], y, q)


@njit
def _lift_words(values, per, bound, width, log_p, noise, q, row):
    for j in range(row.size):
        x = np.int64(np.int64(noise[j]) << np.int64(log_p))
        for k in range(min(per, values.size - j * per)):
            slot = np.int64(np.int64(values[j * per + k]) + bound)
            x = np.int64(x + np.int64(slot << np.int64(width * k)))
        y = np.uint64(np.uint64(x) + q) if x < 0 else np.uint64(x)
        row[j] = _added(row[j], y, q)


@njit
def lift_one(values, per, bound, width, log_p, noise, q, row):
    """Add p e + m to `row` (count,) modulo q."""
    pairs = 0
    if per == 2:
        pairs = values.size // 2
        _lift_pairs(values[: 2 * pairs], bound, width, log_p, noise[:pairs], q, row[:pairs])
    _lift_words(values[per * pairs :], per, bound, width, log_p, noise[pairs:], q, row[pairs:])


@njit
def _lower_pairs(row, offset, q, width, away, most, top, noise, out):
    wide()
    up, high_bits = np.uint64(width), np.uint64(top)
    mask = np.uint64(np.uint64(_ONE << up) - _ONE)
    beyond, above = _ZERO, _ZERO
    for j in range(row.size):
        x = _added(row[j], offset, q)
        low = np.uint64(x & mask)
        upper = np.uint64(np.uint64(x >> up) & mask)
        e = np.uint64(x >> high_bits)
        above = max(above, low, upper)
        beyond = max(beyond, e)
        noise[j] = np.int64(e) - most
        out[2 * j] = np.int64(low) - away
        out[2 * j + 1] = np.int64(upper) - away
    return beyond, above


@njit
def _lower_words(row, per, offset, q, width, away, most, top, noise, out):
    mask = np.uint64(np.uint64(_ONE << np.uint64(width)) - _ONE)
    beyond, above, stray = _ZERO, _ZERO, _ZERO
    for j in range(row.size):
        x = _added(row[j], offset, q)
        e = np.uint64(x >> np.uint64(top))
        beyond = max(beyond, e)
        noise[j] = np.int64(e) - most
        for k in range(per):
            slot = np.uint64(np.uint64(x >> np.uint64(width * k)) & mask)
            if j * per + k < out.size:
                above = max(above, slot)
                out[j * per + k] = np.int64(slot) - away
            else:
                stray = max(stray, slot)
    return beyond, above, stray


@njit
def lower_one(row, per, offset, q, width, away, most, log_p, noise, out):
    """Coefficients into noise and slot sums; gives the largest noise, sum and slot beyond the end.

    The offset is p `most`, so that what is right is not negative; noise comes back less `most`, sums
    less `away`. The largest ones are before that.
    """
    pairs, beyond, above = 0, _ZERO, _ZERO
    if per == 2:
        pairs = out.size // 2
        beyond, above = _lower_pairs(
            row[:pairs], offset, q, width, away, most, log_p, noise[:pairs], out[: 2 * pairs]
        )
    rest = out[per * pairs :]
    e, slot, stray = _lower_words(
        row[pairs:], per, offset, q, width, away, most, log_p, noise[pairs:], rest
    )
    return max(beyond, e), max(above, slot), stray

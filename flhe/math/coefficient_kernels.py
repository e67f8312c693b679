"""Compiled loops of `flhe.coding.coefficients`.

With one modulus below 2**64 a coefficient is a word; two slots a coefficient, which is what Goldilocks'
preset has, go through vector units. With several moduli it has several words: loops go through TILE
coefficients at a time, slot by slot, so that vector units work on many coefficients at once.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide
from flhe.math.prime_kernels import add_scaled, high, minus, mul, plus

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


# --- several moduli ---

TILE = 512

SHIFT = 128
"""Added to noise, int8, so that it is not negative."""

_ONES = np.uint64((1 << 64) - 1)


@njit
def _with_slot(length, per, k, first, size):
    """How many of the `size` coefficients from `first` on have a value in slot k."""
    left = length - first * per - k
    return min(max((left + per - 1) // per, 0), size)


@njit
def _gather(values, per, k, bound, shift, held):
    """Add slot k of as many coefficients as `held` has, shifted; values from the first one's on."""
    wide()
    up = np.uint64(shift)
    for j in range(held.size):
        slot = np.uint64(np.int64(np.int64(values[j * per + k]) + bound))
        held[j] = np.uint64(held[j] + np.uint64(slot << up))


@njit
def _add_noise(noise, p, quotient, shift_p, q, row):
    """Add p times each of `noise`; shift_p: p SHIFT modulo q."""
    wide()
    for j in range(row.size):
        e = np.uint64(np.int64(np.int64(noise[j]) + SHIFT))
        row[j] = plus(row[j], minus(mul(e, p, quotient, q), shift_p, q), q)


@njit
def lift(values, per, bound, width, noise, powers, noisy, moduli, rows):
    """Add p e + m to `rows` (limbs, count), each modulo its own.

    Constants are those of `Limbs`: `powers` its `lift`, and `noisy`.
    """
    held = np.empty(TILE, np.uint64)
    group = 64 // width
    for at in range(0, noise.size, TILE):
        size = min(TILE, noise.size - at)
        for w in range(powers.shape[1]):
            held[:size] = _ZERO
            for k in range(w * group, min((w + 1) * group, per)):
                have = _with_slot(values.size, per, k, at, size)
                shift = width * (k - w * group)
                _gather(values[at * per :], per, k, bound, shift, held[:have])
            for limb in range(rows.shape[0]):
                row = rows[limb, at : at + size]
                add_scaled(held[:size], powers[limb, w, 0], powers[limb, w, 1], moduli[limb], row)
        for limb in range(rows.shape[0]):
            row, p = rows[limb, at : at + size], noisy[limb]
            _add_noise(noise[at : at + size], p[0], p[1], p[2], moduli[limb], row)


@njit
def _shifted(row, offset, q, digit):
    wide()
    for j in range(digit.size):
        digit[j] = plus(row[j], offset, q)


@njit
def _digit(digit, lower, inverse, quotient, q):
    """Take a lower digit, below q, from a digit, and divide by the lower digit's modulus."""
    wide()
    for j in range(digit.size):
        x = np.uint64(np.uint64(digit[j] - lower[j]) + q)
        digit[j] = mul(x, inverse, quotient, q)


@njit
def _horner(word, q, carry):
    """One word of number * q + carry; what is above it is left in `carry`."""
    wide()
    for j in range(word.size):
        x = np.uint64(word[j] * q)
        top = high(word[j], q)
        y = np.uint64(x + carry[j])
        carry[j] = np.uint64(top + _ONE) if y < x else top
        word[j] = y


@njit
def _bits(words, at, out):
    """Bits at to at + 63 of numbers, `words` (words, count), lowest first."""
    wide()
    low, upper, shift = words[at // 64], words[at // 64 + 1], np.uint64(at % 64)
    # Shifting by 64 is undefined: by the rest first, then by one.
    rest = np.uint64(np.uint64(63) - shift)
    for j in range(out.size):
        out[j] = np.uint64(low[j] >> shift) | np.uint64(np.uint64(upper[j] << rest) << _ONE)


@njit
def _beyond(words, at, top):
    """Fill `top` with ones where a number has bits from at + 64 on."""
    wide()
    first, shift = at // 64 + 1, np.uint64(at % 64)
    for w in range(first, words.shape[0]):
        word, down = words[w], shift if w == first else _ZERO
        for j in range(top.size):
            top[j] = _ONES if np.uint64(word[j] >> down) > _ZERO else top[j]


@njit
def _noise(top, most, noise):
    wide()
    beyond = _ZERO
    for j in range(top.size):
        beyond = max(beyond, top[j])
        noise[j] = np.int64(top[j]) - most
    return beyond


@njit
def _scatter(field, mask, away, per, k, out):
    wide()
    above = _ZERO
    for j in range(field.size):
        slot = np.uint64(field[j] & mask)
        above = max(above, slot)
        out[j * per + k] = np.int64(slot) - away
    return above


@njit
def _largest(field, mask):
    wide()
    above = _ZERO
    for j in range(field.size):
        above = max(above, np.uint64(field[j] & mask))
    return above


@njit
def _numbers(rows, order, offsets, moduli, garner, at, digits, words, carry):
    """Residues of coefficients from `at` on into numbers, `words` (words, count), lowest first."""
    limbs, size = moduli.size, carry.size
    for i in range(limbs):
        digit = digits[i, :size]
        _shifted(rows[order[i], at : at + size], offsets[i], moduli[i], digit)
        for k in range(i):
            _digit(digit, digits[k, :size], garner[i, k, 0], garner[i, k, 1], moduli[i])
    words[:] = _ZERO
    words[0, :size] = digits[limbs - 1, :size]
    for i in range(limbs - 2, -1, -1):
        carry[:] = digits[i, :size]
        for w in range(limbs - i):
            _horner(words[w, :size], moduli[i], carry)


@njit
def lower(rows, per, order, offsets, moduli, garner, width, away, most, log_p, noise, out):
    """As `lower_one`, for `rows` (limbs, count).

    `moduli` ascend, `order` says which row has which; `offsets`: p `most` modulo each. `order` and
    `garner` are those of `Limbs`.
    """
    limbs = moduli.size
    digits = np.empty((limbs, TILE), np.uint64)
    words = np.empty((limbs + 2, TILE), np.uint64)
    space = np.empty(TILE, np.uint64)
    mask = np.uint64(np.uint64(_ONE << np.uint64(width)) - _ONE)
    beyond, above, stray = _ZERO, _ZERO, _ZERO
    for at in range(0, noise.size, TILE):
        size = min(TILE, noise.size - at)
        field = space[:size]
        _numbers(rows, order, offsets, moduli, garner, at, digits, words, field)
        _bits(words, log_p, field)
        _beyond(words, log_p, field)
        beyond = max(beyond, _noise(field, most, noise[at : at + size]))
        for k in range(per):
            have = _with_slot(out.size, per, k, at, size)
            _bits(words, width * k, field)
            above = max(above, _scatter(field[:have], mask, away, per, k, out[at * per :]))
            stray = max(stray, _largest(field[have:], mask))
    return beyond, above, stray

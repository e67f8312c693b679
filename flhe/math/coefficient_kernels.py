"""Compiled loops of `flhe.coding.coefficients`.

Values and slots fill whole coefficients here: callers pad the last one. With one modulus below
2**64 a coefficient is a word. With several moduli it has several words. Loops process TILE
coefficients at a time, slot by slot, for vector units.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import clear, copy, inner, njit, wide
from flhe.math.prime_kernels import add_scaled, high, mul

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@inner
def _added(a, b, q):
    """Return the sum modulo any q < 2**64, canonical in and out."""
    return np.uint64(np.uint64(a - np.uint64(q - b)) if a >= np.uint64(q - b) else a + b)


@inner
def _residue(x, q):
    """Return the residue of a signed number between -q and q."""
    return np.uint64(np.uint64(x) + q) if x < 0 else np.uint64(x)


@njit
def lift_one(values, shifts, bound, log_p, noise, q, row):
    """Add p e + m to `row` (count,) modulo q.

    `shifts` is a tuple of the slots' lowest bits: compiled for its length, the loop over it unrolls.
    """
    wide()
    per = len(shifts)
    for j in range(row.size):
        x = np.int64(np.int64(noise[j]) << np.int64(log_p))
        for k in range(per):
            slot = np.int64(np.int64(values[j * per + k]) + bound)
            x = np.int64(x + np.int64(slot << np.int64(shifts[k])))
        row[j] = _added(row[j], _residue(x, q), q)


@njit
def lower_one(row, shifts, mask, offset, q, away, log_p, out):
    """Turn coefficients into slot sums less `away`; return the largest noise and the largest sum.

    The offset, a multiple of p, makes valid values non-negative; the largest ones include it.
    """
    wide()
    per = len(shifts)
    beyond, above = _ZERO, _ZERO
    for j in range(row.size):
        x = _added(row[j], offset, q)
        beyond = max(beyond, np.uint64(x >> np.uint64(log_p)))
        for k in range(per):
            slot = np.uint64(np.uint64(x >> np.uint64(shifts[k])) & mask)
            above = max(above, slot)
            out[j * per + k] = np.int64(slot) - away
    return beyond, above


# --- several moduli ---

TILE = 512

_ONES = np.uint64((1 << 64) - 1)


@inner
def _gather(values, per, k, bound, shift, held):
    """Add slot k of as many coefficients as `held` has, shifted."""
    wide()
    up = np.uint64(shift)
    for j in range(held.size):
        slot = np.uint64(np.int64(np.int64(values[j * per + k]) + bound))
        held[j] = np.uint64(held[j] + np.uint64(slot << up))


@inner
def _residues(noise, q, out):
    wide()
    for j in range(out.size):
        out[j] = _residue(np.int64(noise[j]), q)


@njit
def lift(values, per, bound, width, noise, powers, moduli, rows):
    """Add p e + m to `rows` (limbs, count), each modulo its own modulus."""
    space = np.empty(TILE, np.uint64)
    group, words = 64 // width, powers.shape[1] - 1
    for at in range(0, noise.size, TILE):
        held = space[: min(TILE, noise.size - at)]
        end = at + held.size
        for w in range(words):
            clear(held)
            for k in range(w * group, min((w + 1) * group, per)):
                _gather(values[at * per :], per, k, bound, width * (k - w * group), held)
            for limb in range(moduli.size):
                power = powers[limb, w]
                add_scaled(held, power[0], power[1], moduli[limb], rows[limb, at:end])
        for limb in range(moduli.size):
            power, q = powers[limb, words], moduli[limb]
            _residues(noise[at:end], q, held)
            add_scaled(held, power[0], power[1], q, rows[limb, at:end])


@inner
def _shifted(row, offset, q, digit):
    wide()
    for j in range(digit.size):
        digit[j] = _added(row[j], offset, q)


@inner
def _digit(digit, lower, inverse, quotient, q):
    """Subtract a lower digit, below q, from a digit, and divide by the lower digit's modulus."""
    wide()
    for j in range(digit.size):
        x = np.uint64(np.uint64(digit[j] - lower[j]) + q)
        digit[j] = mul(x, inverse, quotient, q)


@inner
def _horner(word, q, carry):
    """Return one word of number * q + carry; `carry` receives the higher bits."""
    wide()
    for j in range(word.size):
        x = np.uint64(word[j] * q)
        top = high(word[j], q)
        y = np.uint64(x + carry[j])
        carry[j] = np.uint64(top + _ONE) if y < x else top
        word[j] = y


@inner
def _bits(words, at, out):
    """Return bits at to at + 63 of numbers, `words` (words, count), lowest first."""
    wide()
    low, upper, shift = words[at // 64], words[at // 64 + 1], np.uint64(at % 64)
    # Shifting by 64 is undefined: by the rest first, then by one.
    rest = np.uint64(np.uint64(63) - shift)
    for j in range(out.size):
        out[j] = np.uint64(low[j] >> shift) | np.uint64(np.uint64(upper[j] << rest) << _ONE)


@inner
def _beyond(words, at, top):
    """Fill `top` with ones where a number has bits from at + 64 on."""
    wide()
    first, shift = at // 64 + 1, np.uint64(at % 64)
    for w in range(first, words.shape[0]):
        word, down = words[w], shift if w == first else _ZERO
        for j in range(top.size):
            top[j] = _ONES if np.uint64(word[j] >> down) > _ZERO else top[j]


@inner
def _largest(field):
    wide()
    above = _ZERO
    for j in range(field.size):
        above = max(above, field[j])
    return above


@inner
def _scatter(field, mask, away, per, k, out):
    wide()
    above = _ZERO
    for j in range(field.size):
        slot = np.uint64(field[j] & mask)
        above = max(above, slot)
        out[j * per + k] = np.int64(slot) - away
    return above


@inner
def _numbers(rows, order, offsets, moduli, garner, at, digits, words, carry):
    """Turn residues of coefficients from `at` on into numbers, `words` (words, count)."""
    limbs, size = moduli.size, carry.size
    for i in range(limbs):
        digit = digits[i, :size]
        _shifted(rows[order[i], at : at + size], offsets[i], moduli[i], digit)
        for k in range(i):
            _digit(digit, digits[k, :size], garner[i, k, 0], garner[i, k, 1], moduli[i])
    for w in range(words.shape[0]):
        clear(words[w])
    copy(digits[limbs - 1], words[0, :size])
    for i in range(limbs - 2, -1, -1):
        copy(digits[i], carry)
        for w in range(limbs - i):
            _horner(words[w, :size], moduli[i], carry)


@njit
def lower(rows, per, order, offsets, moduli, garner, width, mask, away, log_p, out):
    """Lower `rows` (limbs, count) as `lower_one` does.

    `moduli` ascend, `order` gives the row of each; `offsets`: the offset modulo each.
    """
    limbs, count = rows.shape
    digits = np.empty((limbs, TILE), np.uint64)
    words = np.empty((limbs + 2, TILE), np.uint64)
    space = np.empty(TILE, np.uint64)
    beyond, above = _ZERO, _ZERO
    for at in range(0, count, TILE):
        field = space[: min(TILE, count - at)]
        _numbers(rows, order, offsets, moduli, garner, at, digits, words, field)
        _bits(words, log_p, field)
        _beyond(words, log_p, field)
        beyond = max(beyond, _largest(field))
        for k in range(per):
            _bits(words, width * k, field)
            above = max(above, _scatter(field, mask, away, per, k, out[at * per :]))
    return beyond, above

"""Compiled loops: quantize, mask, pack, add, unpack.

Only this module and modules called `*_kernels` load numba: import them on use, so that importing
flhe does not load it. All kernels release the GIL and are called on slices, so several threads can
share one vector.

Packed layout of values of `bits` bits, word size W (32 bits for bits <= 32, else 64):

- Blocks of W x COLUMNS values. Value (r, l) of a block, index r * COLUMNS + l, takes bits
  [r * bits, (r + 1) * bits) of *column* l, a little-endian bit string of `bits` words; word k of
  column l is stored at k * COLUMNS + l. Neighbouring values thus sit in neighbouring words at the
  same shift, so one instruction works on many of them.
- Values after the last whole block: one little-endian bit string, value by value.

So a ciphertext costs exactly `bits` bits a value, rounded up to a byte once.

Sums are taken inside the packed words (SIMD within a register): with H the top bit of each value,
(x & ~H) + (y & ~H) never carries out of a value, and (x ^ y) & H completes the top bit. A value
that straddles two words passes its carry to the next word of its own column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flhe.math import COLUMNS
from flhe.math.aes_kernels import BLOCKS, GROUP, summed
from flhe.math.field_kernels import clear, copy, inner, left, njit, right, wide


def _packing(word: type[Any], signed: type[Any], wide: int, streamed: bool) -> tuple[Any, Any]:
    """Build kernels for one word size. `word(...)` around each step prevents widening.

    Values and masks are (blocks, wide, COLUMNS), packed words (blocks, bits, COLUMNS). If `streamed`,
    masks are the arguments of `aes_kernels.streams`, and made row by row.
    """
    columns, group = COLUMNS, GROUP * 8 // wide

    @njit
    def pack(values, mask, bits, out):
        field = right(word(~word(0)), word(wide - bits))
        carry, held = np.empty(columns, word), np.empty(columns, word)
        clear(carry)
        if streamed:
            schedule, added, taken, place = mask
        for block in range(values.shape[0]):
            v = values[block]
            o = out[block]
            for r in range(wide):
                k = (r * bits) // wide
                shift = (r * bits) % wide
                s = word(shift)
                vr = v[r]
                if streamed:
                    for at in range(0, columns, group):
                        summed(schedule, added, taken, place, held, at)
                        place += np.uint64(BLOCKS)
                    mr = held
                else:
                    mr = mask[block][r]
                o_k = o[k]
                if shift + bits < wide:
                    for c in range(columns):
                        x = word(word(word(vr[c]) + mr[c]) & field)
                        carry[c] = word(carry[c] | left(x, s))
                else:
                    # Shifting by a whole word is undefined: by the rest first, then by one.
                    t = word(wide - shift - 1)
                    for c in range(columns):
                        x = word(word(word(vr[c]) + mr[c]) & field)
                        o_k[c] = word(carry[c] | left(x, s))
                        carry[c] = right(right(x, t), word(1))

    @njit
    def unpack(data, mask, bits, out):
        field = right(word(~word(0)), word(wide - bits))
        sign = left(word(1), word(bits - 1))
        held = np.empty(columns, word)
        if streamed:
            schedule, added, taken, place = mask
        for block in range(out.shape[0]):
            o = out[block]
            d = data[block]
            for r in range(wide):
                k = (r * bits) // wide
                shift = (r * bits) % wide
                s = word(shift)
                if streamed:
                    for at in range(0, columns, group):
                        summed(schedule, added, taken, place, held, at)
                        place += np.uint64(BLOCKS)
                    mr = held
                else:
                    mr = mask[block][r]
                o_r = o[r]
                d_k = d[k]
                if shift + bits <= wide:
                    for c in range(columns):
                        x = word(word(right(d_k[c], s) + mr[c]) & field)
                        o_r[c] = signed(word(word(x ^ sign) - sign))
                else:
                    t = word(wide - shift)
                    d_n = d[k + 1]
                    for c in range(columns):
                        x = word(right(d_k[c], s) | left(d_n[c], t))
                        x = word(word(x + mr[c]) & field)
                        o_r[c] = signed(word(word(x ^ sign) - sign))

    return pack, unpack


def _addition(word: type[Any]) -> Any:
    """Build the kernel that adds packed words of one size, (blocks, bits, COLUMNS)."""
    columns = COLUMNS

    @njit
    def add(total, part, bits, tops):
        carry = np.empty(columns, word)
        for block in range(total.shape[0]):
            a = total[block]
            b = part[block]
            for c in range(columns):
                carry[c] = word(0)
            for k in range(bits):
                top = tops[k]
                rest = word(~top)
                a_k = a[k]
                b_k = b[k]
                for c in range(columns):
                    x = a_k[c]
                    y = b_k[c]
                    low = word(word(x & rest) + carry[c])
                    total_low = word(low + word(y & rest))
                    carry[c] = word(1) if total_low < low else word(0)
                    a_k[c] = word(total_low ^ word(word(x ^ y) & top))

    return add


pack32, unpack32 = _packing(np.uint32, np.int32, 32, False)
pack64, unpack64 = _packing(np.uint64, np.int64, 64, False)
seal32, open32 = _packing(np.uint32, np.int32, 32, True)
seal64, open64 = _packing(np.uint64, np.int64, 64, True)
add32, add64 = _addition(np.uint32), _addition(np.uint64)


_WORD = np.uint64(64)


@inner
def _store(word, out, at):
    for k in range(8):  # one store: the compiler joins them
        out[at + np.uint64(k)] = np.uint8(word >> np.uint64(8 * k))


@inner
def append(x, bits, out, at, held, filled):
    """Append a number of `bits` bits to a bit string; return the state that the next one takes.

    `at` bytes of `out` are written, and `filled` bits, below 64, are in `held`.
    """
    held = np.uint64(held | np.uint64(x << filled))
    filled = np.uint64(filled + np.uint64(bits))
    if filled < _WORD:
        return at, held, filled
    _store(held, out, at)
    filled = np.uint64(filled - _WORD)
    # What did not fit. All 64 bits may have, and shifting by 64 is undefined.
    held = np.uint64(np.uint64(x >> np.uint64(np.uint64(bits - 1) - filled)) >> np.uint64(1))
    return np.uint64(at + np.uint64(8)), held, filled


@inner
def finish(out, at, held):
    """Write the last bits of a bit string."""
    for k in range(at, out.size):
        out[k] = np.uint8(held)
        held = np.uint64(held >> np.uint64(8))


@inner
def padded(data):
    """Return a copy of a bit string of which `bits_from` can read every bit."""
    out = np.empty(data.size + 8, np.uint8)
    copy(data, out[: data.size])
    clear(out[data.size :])
    return out


@inner
def bits_from(data, at):
    """Return 64 bits of a bit string, which is `padded`, from bit `at` on."""
    first, shift = np.uint64(at >> np.uint64(3)), np.uint64(at & np.uint64(7))
    low = np.uint64(0)
    for k in range(8):  # one load: the compiler joins them
        low |= np.uint64(np.uint64(data[first + np.uint64(k)]) << np.uint64(8 * k))
    top = np.uint64(np.uint64(data[first + np.uint64(8)]) << np.uint64(56))
    return np.uint64(low >> shift) | np.uint64(top << np.uint64(np.uint64(8) - shift))


@inner
def _signed(x, bits):
    return np.int64(np.int64(x << np.uint64(64 - bits)) >> np.int64(64 - bits))


@njit
def pack_rows(values, mask, bits, out):
    """Write rows of (values + mask) mod 2**bits as bit strings into bytes `out`.

    `values` are signed, (rows, per), `mask` unsigned, (per,).
    """
    field = np.uint64(~np.uint64(0)) >> np.uint64(64 - bits)
    for row in range(values.shape[0]):
        at, held, filled = np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(values.shape[1]):
            x = np.uint64(np.uint64(np.uint64(values[row, i]) + np.uint64(mask[i])) & field)
            at, held, filled = append(x, bits, out[row], at, held, filled)
        finish(out[row], at, held)


@njit
def unpack_rows(data, mask, bits, out):
    """Invert `pack_rows` for negated masks; values come out signed."""
    for row in range(out.shape[0]):
        at, held = np.uint64(0), padded(data[row])
        for i in range(out.shape[1]):
            out[row, i] = _signed(np.uint64(bits_from(held, at) + np.uint64(mask[i])), bits)
            at += np.uint64(bits)


_ROW = 2048
"""Values whose rounding values are made at a time: they stay in a core's first cache."""


@inner
def _outside(v, limit):
    """Return 1 for a scaled value beyond the limit, or NaN; 32 bits, as the values have."""
    return np.int32(0) if abs(v) <= limit else np.int32(1)


@inner
def _clipped(v, weight):
    """Return a scaled value times the weight, clipped to it.

    Clipping comes after the weight, which is positive: rounding keeps order, so it gives the same.
    """
    v = np.float32(v * weight)
    least = np.float32(-weight)
    v = v if v > least else least
    return v if v < weight else weight


@njit
def quantize(x, inverse_bound, limit, weight, levels, rounding, offset, out):
    """Compute floor(clip(x / bound, -1, 1) * weight * levels + u), u uniform; count values outside.

    A value is inside up to `limit`, which is 1 apart from float32's rounding of alpha / alpha; NaN
    is outside. Steps round like the separate codecs: float32 up to the weight, float64 after it.
    Counters are 32 bits wide so that they share registers with the values: fewer than 2**31 values
    a call.
    """
    outside = np.int32(0)
    for i in range(x.size):
        v = np.float32(x[i] * inverse_bound)
        outside = np.int32(outside + _outside(v, limit))
        u = np.float64(np.int32(rounding[i])) * (1.0 / 65536.0) + offset
        out[i] = np.int32(np.floor(np.float64(_clipped(v, weight)) * levels + u))
    return outside


@inner
def _short(x, inverse_bound, limit, weight, scale, rounding, part, out):
    """Do what `quantize_short` does; `scale` and `part` are levels and offset times 2**16."""
    wide()
    outside = np.int32(0)
    for i in range(x.size):
        v = np.float32(x[i] * inverse_bound)
        outside = np.int32(outside + _outside(v, limit))
        fine = np.int32(np.floor(np.float64(_clipped(v, weight)) * scale + part))
        out[i] = np.int16(np.int32(fine + np.int32(rounding[i])) >> np.int32(16))
    return outside


@njit
def quantize_short(x, inverse_bound, limit, weight, levels, rounding, offset, out):
    """Do what `quantize` does, for up to 16 bits: the same integers, in three quarters of the time.

    Let s be a value times levels, plus the offset, and r its rounding value, an integer. Then
    floor(s + r / 2**16) = (floor(2**16 s) + r) >> 16. The products are exact: 24 bits times 15, times
    a power of two. None lies so close below an integer that `quantize`, which adds in float64, would
    round up to it. The largest sum is 2**31 - 1.
    """
    scale, part = levels * 65536.0, offset * 65536.0
    return _short(x, inverse_bound, limit, weight, scale, rounding, part, out)


@njit
def quantize_streamed(x, inverse_bound, limit, weight, levels, streams, offset, out):
    """Do what `quantize_short` does, and make the rounding values, with `aes_kernels.streams`."""
    schedule, added, taken, place = streams
    scale, part = levels * 65536.0, offset * 65536.0
    held = np.empty(_ROW, np.uint16)
    outside = np.int32(0)
    for start in range(0, x.size, _ROW):
        for at in range(0, min(_ROW, x.size - start), GROUP // 2):
            summed(schedule, added, taken, place, held, at)
            place += np.uint64(BLOCKS)
        row, target = x[start : start + _ROW], out[start : start + _ROW]
        more = _short(row, inverse_bound, limit, weight, scale, held, part, target)
        outside = np.int32(outside + more)
    return outside


@njit
def dequantize(total, factor, bound, out):
    """Write float32(total * factor); return whether an integer is outside [-bound, bound]."""
    largest = least = total[0] if total.size else total.dtype.type(0)
    for i in range(total.size):
        value = total[i]
        largest = value if value > largest else largest
        least = value if value < least else least
        out[i] = np.float32(np.float64(value) * factor)
    return (largest > bound) | (least < -bound)

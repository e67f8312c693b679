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
from flhe.math.field_kernels import clear, njit


def _packing(word: type[Any], signed: type[Any], wide: int) -> tuple[Any, Any, Any]:
    """Build kernels for one word size. `word(...)` around each step prevents widening.

    Values and masks are (blocks, wide, COLUMNS), packed words (blocks, bits, COLUMNS).
    """
    columns = COLUMNS

    @njit
    def pack(values, mask, bits, out):
        field = word(~word(0)) >> word(wide - bits)
        carry = np.empty(columns, word)
        clear(carry)
        for block in range(values.shape[0]):
            v = values[block]
            m = mask[block]
            o = out[block]
            for r in range(wide):
                k = (r * bits) // wide
                shift = (r * bits) % wide
                s = word(shift)
                vr = v[r]
                mr = m[r]
                o_k = o[k]
                if shift + bits < wide:
                    for c in range(columns):
                        x = word(word(word(vr[c]) + mr[c]) & field)
                        carry[c] = word(carry[c] | word(x << s))
                else:
                    # Shifting by a whole word is undefined: by the rest first, then by one.
                    t = word(wide - shift - 1)
                    for c in range(columns):
                        x = word(word(word(vr[c]) + mr[c]) & field)
                        o_k[c] = word(carry[c] | word(x << s))
                        carry[c] = word(word(x >> t) >> word(1))

    @njit
    def unpack(data, mask, bits, out):
        up = word(wide - bits)
        down = signed(wide - bits)
        for block in range(out.shape[0]):
            m = mask[block]
            o = out[block]
            d = data[block]
            for r in range(wide):
                k = (r * bits) // wide
                shift = (r * bits) % wide
                s = word(shift)
                mr = m[r]
                o_r = o[r]
                d_k = d[k]
                if shift + bits <= wide:
                    for c in range(columns):
                        x = word(word(d_k[c] >> s) + mr[c])
                        o_r[c] = signed(signed(word(x << up)) >> down)
                else:
                    t = word(wide - shift)
                    d_n = d[k + 1]
                    for c in range(columns):
                        x = word(word(word(d_k[c] >> s) | word(d_n[c] << t)) + mr[c])
                        o_r[c] = signed(signed(word(x << up)) >> down)

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

    return pack, unpack, add


pack32, unpack32, add32 = _packing(np.uint32, np.int32, 32)
pack64, unpack64, add64 = _packing(np.uint64, np.int64, 64)


@njit
def pack_rows(values, mask, bits, out):
    """Write rows of (values + mask) mod 2**bits as bit strings into bytes `out`, which are zero.

    `values` are signed, (rows, per), `mask` unsigned, (per,).
    """
    for row in range(values.shape[0]):
        at = 0
        for i in range(values.shape[1]):
            x = np.uint64(np.uint64(values[row, i]) + np.uint64(mask[i]))
            left = bits
            while left > 0:
                used = at & 7
                take = min(8 - used, left)
                piece = np.uint64(x & np.uint64((1 << take) - 1))
                out[row, at >> 3] |= np.uint8(piece << np.uint64(used))
                x = np.uint64(x >> np.uint64(take))
                at += take
                left -= take


@njit
def unpack_rows(data, mask, bits, out):
    """Invert `pack_rows` for negated masks; values come out signed."""
    up = np.uint64(64 - bits)
    for row in range(out.shape[0]):
        at = 0
        for i in range(out.shape[1]):
            x = np.uint64(0)
            got = 0
            while got < bits:
                used = at & 7
                take = min(8 - used, bits - got)
                piece = np.uint64(np.uint64(data[row, at >> 3]) >> np.uint64(used))
                piece = np.uint64(piece & np.uint64((1 << take) - 1))
                x = np.uint64(x | np.uint64(piece << np.uint64(got)))
                at += take
                got += take
            x = np.uint64(np.uint64(x + np.uint64(mask[i])) << up)
            out[row, i] = np.int64(np.int64(x) >> np.int64(64 - bits))


@njit
def quantize(x, inverse_bound, limit, weight, levels, rounding, offset, out):
    """Compute floor(clip(x / bound, -1, 1) * weight * levels + u), u uniform; count values outside.

    A value is inside up to `limit`, which is 1 apart from float32's rounding of alpha / alpha; NaN
    is outside. Steps round like the separate codecs: float32 up to the weight, float64 after it.
    Counters are 32 bits wide so that they share registers with the values: fewer than 2**31 values
    a call.
    """
    one = np.float32(1)
    outside = np.int32(0)
    for i in range(x.size):
        v = np.float32(x[i] * inverse_bound)
        outside = np.int32(outside + (np.int32(0) if abs(v) <= limit else np.int32(1)))
        v = v if v > -one else -one
        v = v if v < one else one
        v = np.float32(v * weight)
        u = np.float64(np.int32(rounding[i])) * (1.0 / 65536.0) + offset
        out[i] = np.int32(np.floor(np.float64(v) * levels + u))
    return outside


@njit
def dequantize(total, factor, bound, out):
    """Write float32(total * factor); return the number of integers outside [-bound, bound]."""
    beyond = np.int32(0)
    for i in range(total.size):
        value = total[i]
        outside = (value > bound) | (value < -bound)
        beyond = np.int32(beyond + (np.int32(1) if outside else np.int32(0)))
        out[i] = np.float32(np.float64(value) * factor)
    return beyond

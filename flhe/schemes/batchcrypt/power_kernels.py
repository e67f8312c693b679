"""Compiled products modulo p^2, eight at a time: one in each 64-bit lane of an AVX-512 register.

A number is x + p y, with x and y below 2 p, each in limbs of 52 bits. It represents itself times R
modulo p^2 (Montgomery's form), R = 2^(52 limbs) >= 64 p. So a product takes numbers half as long as
p^2:

    T = x x'                  = R r - p m     with m = -T p^-1 mod R, r = (T + m p) / R
    T + p (x y' + y x')       = R r + p (U - m)          U = x y' + y x'
    (x + p y)(x' + p y') / R  = r + p (U - m) / R        modulo p^2

and (U - m) / R modulo p is one more such reduction, of U - m + C, where C, a multiple of p, is at
least R. Both r and that quotient are below 2 p again: T < 4 p^2 and U - m + C < 8 p^2 + R + p.
Dividing by R and adding p gives less than p (1 + 8 / 64) + 2.

The IFMA instructions multiply limbs: they add the low or the high 52 bits of a product to a 64-bit
lane. A column gets 6 limbs + 2 such numbers at most, below 2^60 for 40 limbs, so carries wait until
the end. Limb k of all lanes is 8 neighbouring words. Blocks of BLOCK x BLOCK limbs are unrolled, so
that sums stay in registers. numba has no such type: the blocks are written as LLVM code here.

A program lists the products, in rows of three slots: (to, from, from). One compiled function thus
serves both powers and products over tables.
"""

# Callers of an intrinsic omit its typing context.
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from flhe.math import BLOCK, LANES, LIMB_BITS

_njit = numba.njit(nogil=True, cache=True, error_model="numpy")

_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)


def _same(value):
    return ir.Constant(_VECTOR, [value] * LANES)


def _place(context, builder, kind, array, offset):
    """Return a pointer to vector `offset` of a one-dimensional array of words."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _VECTOR.as_pointer()), [offset])


def _load(builder, place, k):
    return builder.load(builder.gep(place, [ir.Constant(_WORD, k)]), align=8)


def _store(builder, place, k, value):
    builder.store(value, builder.gep(place, [ir.Constant(_WORD, k)]), align=8)


def _multiply_add(builder):
    """Return low(c, a, b) and high(c, a, b): c plus the low or high 52 bits of a limb product."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    low, high = (
        cgutils.get_or_insert_function(
            builder.module, kind, f"llvm.x86.avx512.vpmadd52{half}.uq.512"
        )
        for half in "lh"
    )
    return (
        lambda c, a, b: builder.call(low, [c, a, b]),
        lambda c, a, b: builder.call(high, [c, a, b]),
    )


@intrinsic
def _multiply(typing, out, at, a, a_at, b, b_at):
    """out[at : at + 2 BLOCK] += a[a_at : a_at + BLOCK] b[b_at : b_at + BLOCK], in vectors."""

    def code(context, builder, signature, args):
        kinds = signature.args
        place = _place(context, builder, kinds[0], args[0], args[1])
        left = _place(context, builder, kinds[2], args[2], args[3])
        right = _place(context, builder, kinds[4], args[4], args[5])
        low, high = _multiply_add(builder)
        x = [_load(builder, left, i) for i in range(BLOCK)]
        sums = [_load(builder, place, i) for i in range(2 * BLOCK)]
        for j in range(BLOCK):
            y = _load(builder, right, j)
            for i in range(BLOCK):
                sums[i + j] = low(sums[i + j], x[i], y)
            for i in range(BLOCK):
                sums[i + j + 1] = high(sums[i + j + 1], x[i], y)
        for i in range(2 * BLOCK):
            _store(builder, place, i, sums[i])
        return context.get_dummy_value()

    return types.void(out, types.int64, a, types.int64, b, types.int64), code


@intrinsic
def _quotient(typing, sums, at, m, m_at, p, inverse):
    """Compute limbs [m_at, m_at + BLOCK) of m in order, adding each times the lowest block of p.

    The first BLOCK vectors of `sums` from `at` on become 0, and are left unwritten because they are
    not read. `inverse` is -p^-1 modulo 2^52, in every lane.
    """

    def code(context, builder, signature, args):
        kinds = signature.args
        zero = ir.Constant(_WORD, 0)
        place = _place(context, builder, kinds[0], args[0], args[1])
        digits = _place(context, builder, kinds[2], args[2], args[3])
        prime = _place(context, builder, kinds[4], args[4], zero)
        factor = _load(builder, _place(context, builder, kinds[5], args[5], zero), 0)
        low, high = _multiply_add(builder)
        x = [_load(builder, prime, i) for i in range(BLOCK)]
        column = [_load(builder, place, i) for i in range(2 * BLOCK)]
        for j in range(BLOCK):
            digit = low(_same(0), column[j], factor)  # IFMA takes the low 52 bits of each lane
            _store(builder, digits, j, digit)
            column[j] = low(column[j], x[0], digit)  # now a multiple of 2^52
            carry = builder.lshr(column[j], _same(LIMB_BITS))
            column[j + 1] = high(builder.add(column[j + 1], carry), x[0], digit)
            for i in range(1, BLOCK):
                column[i + j] = low(column[i + j], x[i], digit)
            for i in range(1, BLOCK):
                column[i + j + 1] = high(column[i + j + 1], x[i], digit)
        for i in range(BLOCK, 2 * BLOCK):
            _store(builder, place, i, column[i])
        return context.get_dummy_value()

    return types.void(sums, types.int64, m, types.int64, p, inverse), code


@intrinsic
def _carry(typing, sums, at, out, count):
    """Carry sums[at : at + count] into limbs of 52 bits, out[:count]; the last carry is 0."""

    def code(context, builder, signature, args):
        kinds = signature.args
        zero = ir.Constant(_WORD, 0)
        place = _place(context, builder, kinds[0], args[0], args[1])
        target = _place(context, builder, kinds[2], args[2], zero)
        slot = cgutils.alloca_once_value(builder, _same(0))
        with cgutils.for_range(builder, args[3]) as loop:
            column = builder.load(builder.gep(place, [loop.index]), align=8)
            column = builder.add(column, builder.load(slot))
            limb = builder.and_(column, _same((1 << LIMB_BITS) - 1))
            builder.store(limb, builder.gep(target, [loop.index]), align=8)
            builder.store(builder.lshr(column, _same(LIMB_BITS)), slot)
        return context.get_dummy_value()

    return types.void(sums, types.int64, out, types.int64), code


@_njit
def _divide(sums, m, p, inverse, blocks):
    """Add m p, so that the lower half of `sums` is 0 and the upper is the quotient by R."""
    for i in range(blocks):
        _quotient(sums, i * BLOCK, m, i * BLOCK, p, inverse)
        for j in range(1, blocks):
            _multiply(sums, (i + j) * BLOCK, m, i * BLOCK, p, j * BLOCK)


@_njit
def _product(a, b, square, blocks, t, u):
    """Compute the columns of x x' into t, and of x y' + y x' into u."""
    t[:] = 0
    u[:] = 0
    if square:
        for i in range(blocks):
            for j in range(i + 1, blocks):
                _multiply(t, (i + j) * BLOCK, a[0], i * BLOCK, a[0], j * BLOCK)
            for j in range(blocks):
                _multiply(u, (i + j) * BLOCK, a[0], i * BLOCK, a[1], j * BLOCK)
        for k in range(t.size):
            t[k] += t[k]
            u[k] += u[k]
        for i in range(blocks):
            _multiply(t, 2 * i * BLOCK, a[0], i * BLOCK, a[0], i * BLOCK)
    else:
        for i in range(blocks):
            for j in range(blocks):
                _multiply(t, (i + j) * BLOCK, a[0], i * BLOCK, b[0], j * BLOCK)
                _multiply(u, (i + j) * BLOCK, a[0], i * BLOCK, b[1], j * BLOCK)
                _multiply(u, (i + j) * BLOCK, a[1], i * BLOCK, b[0], j * BLOCK)


@_njit
def run(program, slots, prime, offset, inverse, scratch, table, digits):
    """Run a program on the numbers in `slots`.

    Parameters
    ----------
    program : int64 (steps, 3)
        Slots (to, a, b): to = a b / R mod p^2. b = -1 - i: entries of row i of the table, one for
        each lane, which are first put into slot 0.
    slots : uint64 (count, 2, LANES limbs)
        x, y of each number, limb by limb; data aligned to 64 bytes is faster.
    prime, offset : uint64 (LANES limbs,)
        p; C, its limbs at least 2^52 - 1 each.
    inverse : uint64 (LANES,)
        -p^-1 modulo 2^52.
    scratch : uint64 (6, LANES limbs)
    table : uint64 (rows, entries, 2 limbs)
        x and y of each entry.
    digits : int64 (rows, LANES)
        Index of each lane's entry.
    """
    size = prime.size
    limbs = size // LANES
    blocks = limbs // BLOCK
    flat = scratch.reshape(-1)
    t = flat[: 2 * size]
    u = flat[2 * size : 4 * size]
    m = flat[4 * size : 5 * size]
    unused = flat[5 * size :]
    for step in range(len(program)):
        to, a, b = program[step]
        if b < 0:
            row = -1 - b
            b = 0
            entry = slots[0].reshape(-1)
            for lane in range(LANES):
                chosen = table[row, digits[row, lane]]
                for k in range(2 * limbs):
                    entry[k * LANES + lane] = chosen[k]
        _product(slots[a], slots[b], a == b, blocks, t, u)
        _divide(t, m, prime, inverse, blocks)
        for k in range(size):
            u[k] += offset[k] - m[k]
        _divide(u, unused, prime, inverse, blocks)
        _carry(t, limbs, slots[to, 0], limbs)
        _carry(u, limbs, slots[to, 1], limbs)


EMPTY_TABLE = np.zeros((0, 0, 0), np.uint64)
EMPTY_DIGITS = np.zeros((0, LANES), np.int64)

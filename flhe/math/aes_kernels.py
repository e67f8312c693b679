"""Compiled AES-256 in counter mode, by the processor's vector AES instructions (VAES).

OpenSSL encrypts one block an instruction in counter mode. VAES encrypts two, in 256-bit registers,
and eight registers are under way at a time: on processors that have it, from Intel's Ice Lake and
AMD's Zen 3 on, a keystream takes 0.4 times as long. Several streams are added up on the way, so that
only their sum is written.

No table and no branch depends on the key. The instructions are FIPS 197's rounds, and the schedule
is its Section 5.2. `flhe.math.keystream` compares a process's first blocks with OpenSSL's.

`flhe.math.kernels` compiles this in: after a change here touch it too, or numba's cache goes stale.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from flhe.math.field_kernels import copy, inner, njit

ROUNDS = 14

_DEPTH = 8
"""Registers, of two blocks each, that are encrypted at a time: an instruction's latency."""

BLOCKS = 2 * _DEPTH
"""Blocks encrypted at a time."""

GROUP = 16 * BLOCKS
"""Bytes of those."""

_BYTE, _INT = ir.IntType(8), ir.IntType(32)
_BLOCK, _QUARTERS = ir.VectorType(ir.IntType(64), 2), ir.VectorType(_INT, 4)


def features() -> frozenset[str]:
    """Return LLVM's names of what the processor has, as far as numba compiles for it."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return frozenset()
    _, _, told = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(name[1:] for name in told.split(",") if name.startswith("+"))


def able() -> bool:
    """Return whether numba compiles for a processor that has these instructions."""
    return {"aes", "vaes", "avx2"} <= features()


def _pointer(context: Any, builder: Any, kind: Any, array: Any, to: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(data, to.as_pointer())


def _called(builder: Any, name: str, *arguments: Any) -> Any:
    kinds = [argument.type for argument in arguments]
    kind = ir.FunctionType(arguments[0].type, kinds)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _substituted(_context: Any, word: Any) -> Any:
    def code(_c: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        # Of each half's upper word, the instruction returns the substituted one in the lower place.
        vector = builder.insert_element(ir.Constant(_QUARTERS, [0] * 4), arguments[0], _INT(1))
        vector = builder.bitcast(vector, _BLOCK)
        kind = ir.FunctionType(_BLOCK, [_BLOCK, _BYTE])
        name = "llvm.x86.aesni.aeskeygenassist"
        assist = cgutils.get_or_insert_function(builder.module, kind, name)
        found = builder.bitcast(builder.call(assist, [vector, _BYTE(0)]), _QUARTERS)
        return builder.extract_element(found, _INT(0))

    return types.uint32(types.uint32), code


_sub_word: Any = intrinsic(_substituted)


def _shuffled(builder: Any, vector: Any, other: Any, *places: int) -> Any:
    order = ir.Constant(ir.VectorType(_INT, len(places)), places)
    return builder.shuffle_vector(vector, other, order)


def _counters(builder: Any, number: Any, pairs: list[Any]) -> list[Any]:
    """Return registers of two counter blocks each, big-endian; `pairs` are their positions."""
    numbers = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), number, _INT(0))
    both = (_shuffled(builder, numbers, pair, 0, 2, 0, 3) for pair in pairs)
    return [_called(builder, "llvm.bswap.v4i64", counters) for counters in both]


def _encrypted(builder: Any, keys: Any, blocks: list[Any]) -> list[Any]:
    """Return registers of two blocks each, encrypted (FIPS 197, Section 5.1)."""
    for r in range(ROUNDS + 1):
        key = builder.load(builder.gep(keys, [_INT(r)]), align=1)
        key = _shuffled(builder, key, key, 0, 1, 0, 1)
        if r == 0:
            blocks = [builder.xor(block, key) for block in blocks]
        else:
            name = "llvm.x86.aesni.aesenc" + ("last" if r == ROUNDS else "") + ".256"
            blocks = [_called(builder, name, block, key) for block in blocks]
    return blocks


def _encryption(operation: str) -> Any:
    """Build `f(schedule, number, blocks, out, at)`: blocks of a stream, into lanes from `at` on.

    `blocks` is the first one's place, or an array of all of a group's. They are written there, or
    added to what is there, or subtracted from it.
    """

    def typed(_context: Any, schedule: Any, number: Any, blocks: Any, out: Any, at: Any) -> Any:
        if schedule.layout != "C" or out.layout != "C" or not out.mutable:
            return None  # no such function: what follows takes addresses
        lane, apart = ir.IntType(out.dtype.bitwidth), isinstance(blocks, types.Array)
        lanes = ir.VectorType(lane, 256 // out.dtype.bitwidth)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            keys = _pointer(context, builder, signature.args[0], arguments[0], _BLOCK)
            target = _pointer(context, builder, signature.args[3], arguments[3], lane)
            if apart:
                places = _pointer(context, builder, signature.args[2], arguments[2], _BLOCK)
                pairs = [
                    builder.load(builder.gep(places, [_INT(d)]), align=1) for d in range(_DEPTH)
                ]
            else:
                first = builder.insert_element(ir.Constant(_BLOCK, [0, 0]), arguments[2], _INT(0))
                first = _shuffled(builder, first, first, 0, 0)
                steps = (ir.Constant(_BLOCK, [2 * d, 2 * d + 1]) for d in range(_DEPTH))
                pairs = [builder.add(first, step) for step in steps]
            made = _encrypted(builder, keys, _counters(builder, arguments[1], pairs))
            target = builder.bitcast(builder.gep(target, [arguments[4]]), lanes.as_pointer())
            for d, register in enumerate(made):
                place, value = builder.gep(target, [_INT(d)]), builder.bitcast(register, lanes)
                if operation != "write":
                    value = getattr(builder, operation)(builder.load(place, align=1), value)
                builder.store(value, place, align=1)
            return context.get_dummy_value()

        kinds = (schedule, types.uint64, blocks if apart else types.uint64, out, types.uint64)
        return types.void(*kinds), code

    return intrinsic(typed)


_write, _add, _subtract = (_encryption(name) for name in ("write", "add", "sub"))


@njit
def expand(schedule):
    """Expand a key, the first eight little-endian words of `schedule`: uint32 (60,), in place."""
    constant = np.uint32(1)
    for i in range(8, schedule.size):
        word = schedule[i - 1]
        if i % 8 == 0:
            word = _sub_word(word)
            word = np.uint32(np.uint32(word >> 8) | np.uint32(word << 24)) ^ constant
            constant = np.uint32(constant << 1)
        elif i % 8 == 4:
            word = _sub_word(word)
        schedule[i] = np.uint32(schedule[i - 8] ^ word)


@inner
def summed(schedule, added, taken, blocks, out, at):
    """Write one group of the sum of streams."""
    if added.size:
        _write(schedule, added[0], blocks, out, at)
    else:
        for i in range(GROUP // out.itemsize):
            out[at + i] = 0
    for k in range(1, added.size):
        _add(schedule, added[k], blocks, out, at)
    for k in range(taken.size):
        _subtract(schedule, taken[k], blocks, out, at)


@njit
def streams(schedule, added, taken, block, out):
    """Write the sum of streams from a block on, modulo the lane.

    `added` and `taken` are numbers of streams, uint64; `out` is uint32 or uint64, (count,).
    """
    lanes = GROUP // out.itemsize
    whole = out.size // lanes * lanes
    for at in range(0, whole, lanes):
        summed(schedule, added, taken, block, out, at)
        block += np.uint64(BLOCKS)
    if whole < out.size:
        rest = np.empty(lanes, out.dtype)
        summed(schedule, added, taken, block, rest, 0)
        copy(rest, out[whole:])


@njit
def streams_at(schedule, added, taken, coords, out):
    """Write the sum of streams at lanes `coords`, uint32 (count,), with a block for each.

    Fewer than BLOCKS are not written; otherwise the last ones may be encrypted twice.
    """
    shift = np.uint64(2 if out.itemsize == 4 else 1)  # lanes of a block, as a power of two
    low = np.uint64((1 << shift) - 1)
    held, blocks = np.empty(BLOCKS << shift, out.dtype), np.empty(BLOCKS, np.uint64)
    for start in range(0, out.size, BLOCKS):
        first = np.uint64(min(start, out.size - BLOCKS))
        for i in range(BLOCKS):
            blocks[i] = np.uint64(coords[np.uint64(first + np.uint64(i))]) >> shift
        summed(schedule, added, taken, blocks, held, 0)
        for i in range(BLOCKS):
            at = np.uint64(first + np.uint64(i))
            out[at] = held[np.uint64(np.uint64(i) << shift) | np.uint64(coords[at] & low)]

"""Compiled AES-256 in counter mode, by the processor's vector AES instructions (VAES).

OpenSSL encrypts one block an instruction in counter mode. VAES encrypts two, in 256-bit registers,
and eight registers are under way at a time: on processors that have it, from Intel's Ice Lake and
AMD's Zen 3 on, a keystream takes 0.4 times as long. Several streams are added up on the way, so that
only their sum is written.

No table and no branch depends on the key. The instructions are FIPS 197's rounds, and the schedule
is its Section 5.2. `flhe.math.prg` compares each process's first blocks with OpenSSL's.
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

_WIDE, _DEPTH = 2, 8
"""Blocks of one register, and registers that are encrypted at a time: an instruction's latency."""

GROUP = 16 * _WIDE * _DEPTH
"""Bytes encrypted at a time."""

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BLOCK, _REGISTER = ir.VectorType(_LONG, 2), ir.VectorType(_LONG, 2 * _WIDE)
_QUARTERS = ir.VectorType(_INT, 4)


def able() -> bool:
    """Return whether numba compiles for a processor that has these instructions."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return False
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return {"+aes", "+vaes", "+avx2"} <= set(features.split(","))


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


def _encryption(operation: str) -> Any:
    """Build `f(schedule, number, block, out, at)`: a GROUP of a stream, into lanes from `at` on.

    It is written there, or added to what is there, or subtracted from it.
    """

    def typed(_context: Any, schedule: Any, number: Any, block: Any, out: Any, at: Any) -> Any:
        lane = ir.IntType(out.dtype.bitwidth)
        lanes = ir.VectorType(lane, 256 // out.dtype.bitwidth)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            keys = _pointer(context, builder, signature.args[0], arguments[0], _BLOCK)
            target = _pointer(context, builder, signature.args[3], arguments[3], lane)
            both = ir.Constant(ir.VectorType(_INT, 2 * _WIDE), [0, 1] * _WIDE)

            def round_key(at: int) -> Any:
                key = builder.load(builder.gep(keys, [_INT(at)]), align=1)
                return builder.shuffle_vector(key, ir.Constant(_BLOCK, ir.Undefined), both)

            first = ir.Constant(_REGISTER, ir.Undefined)
            for i in range(2 * _WIDE):  # number and block, for each block of a register
                first = builder.insert_element(first, arguments[1 + i % 2], _INT(i))
            states, key = [], round_key(0)
            for d in range(_DEPTH):
                steps = [step for i in range(_WIDE) for step in (0, d * _WIDE + i)]
                counters = builder.add(first, ir.Constant(_REGISTER, steps))
                counters = _called(builder, f"llvm.bswap.v{2 * _WIDE}i64", counters)
                states.append(builder.xor(counters, key))
            for r in range(1, ROUNDS + 1):
                name = "llvm.x86.aesni.aesenc" + ("last" if r == ROUNDS else "") + ".256"
                key = round_key(r)
                states = [_called(builder, name, state, key) for state in states]
            target = builder.bitcast(builder.gep(target, [arguments[4]]), lanes.as_pointer())
            for d, state in enumerate(states):
                place, made = builder.gep(target, [_INT(d)]), builder.bitcast(state, lanes)
                if operation != "write":
                    made = getattr(builder, operation)(builder.load(place, align=1), made)
                builder.store(made, place, align=1)
            return context.get_dummy_value()

        return types.void(schedule, types.uint64, types.uint64, out, types.uint64), code

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
def _groups(schedule, added, taken, block, out, count):
    lanes = GROUP // out.itemsize
    for at in range(0, count, lanes):
        if added.size:
            _write(schedule, added[0], block, out, at)
        else:
            for i in range(at, at + lanes):
                out[i] = 0
        for k in range(1, added.size):
            _add(schedule, added[k], block, out, at)
        for k in range(taken.size):
            _subtract(schedule, taken[k], block, out, at)
        block += np.uint64(GROUP // 16)


@njit
def streams(schedule, added, taken, block, out):
    """Write the sum of streams from a block on, modulo the lane.

    `added` and `taken` are numbers of streams, uint64; `out` is uint32 or uint64, (count,).
    """
    lanes = GROUP // out.itemsize
    whole = out.size // lanes * lanes
    _groups(schedule, added, taken, block, out, whole)
    if whole < out.size:
        rest = np.empty(lanes, out.dtype)
        block = np.uint64(block + np.uint64(whole * out.itemsize // 16))
        _groups(schedule, added, taken, block, rest, lanes)
        copy(rest, out[whole:])

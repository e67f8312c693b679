"""Numbers modulo p^2 in eight lanes, for `power_kernels`, and a check that the CPU supports it.

The kernel needs a processor with AVX-512 IFMA (Intel since Ice Lake, AMD since Zen 4). Elsewhere
callers use GMP.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math import BLOCK, LANES, LIMB_BITS
from flhe.math.bigint import Big, from_rows, gmpy, to_rows

SLACK = 6
"""Number of bits by which R must exceed p, see the kernel."""
SHORTEST = 256
"""Minimum bits of a prime for which lanes beat GMP."""

Words = NDArray[np.uint64]

_PAIR = 2 * LIMB_BITS // 8
"""Bytes of two limbs: 13."""


@functools.cache
def available() -> bool:
    """Return whether this processor has the instructions, and numba may use them."""
    from llvmlite import binding  # comes with numba, and loads in a tenth of the time

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot detect the features here
        return False
    if not (features.get("avx512f") and features.get("avx512ifma")):
        return False
    from flhe.math import aes_kernels

    # Under other settings of numba, LLVM would end the process in the kernel.
    return {"avx512f", "avx512ifma"} <= aes_kernels.features()


def aligned(*shape: int) -> Words:
    """Return zeros aligned to 64 bytes, the length of a register and of a cache line."""
    size = int(np.prod(shape))
    whole = np.zeros(size + LANES, np.uint64)
    start = -whole.ctypes.data % 64 // 8
    return whole[start : start + size].reshape(shape)


def _limbs(numbers: Sequence[Big], limbs: int) -> Words:
    """Split numbers below 2^(52 limbs) into limbs: uint64 (count, limbs), `limbs` even."""
    pairs = to_rows(numbers, limbs // 2 * _PAIR, len(numbers)).reshape(-1, _PAIR)
    out = np.zeros((len(pairs), 2, 8), np.uint8)
    out[:, 0, :7] = pairs[:, :7]
    out[:, 0, 6] &= 0x0F
    out[:, 1, :7] = pairs[:, 6:]
    words = out.view("<u8")[..., 0].astype(np.uint64)
    words[:, 1] >>= np.uint64(4)
    return words.reshape(len(numbers), limbs)


def _numbers(words: Words) -> list[Big]:
    pairs = words.reshape(-1, 2).copy()
    pairs[:, 1] <<= np.uint64(4)
    parts = pairs.astype("<u8").view(np.uint8).reshape(-1, 2, 8)
    out = np.empty((len(pairs), _PAIR), np.uint8)
    out[:, :7] = parts[:, 0, :7]
    out[:, 6] |= parts[:, 1, 0]
    out[:, 7:] = parts[:, 1, 1:7]
    return from_rows(out.reshape(len(words), -1))


class Lanes:
    """Arithmetic modulo the square of one prime, secret; x and y have `limbs` limbs."""

    __slots__ = ("_constants", "_p", "_shift", "_square", "limbs")

    def __init__(self, p: int) -> None:
        g = gmpy()
        self._p = p = g.mpz(p)
        self._square = p * p
        step = BLOCK * LIMB_BITS
        self._shift = -(-(p.bit_length() + SLACK) // step) * step
        self.limbs = self._shift // LIMB_BITS
        r = g.mpz(1) << self._shift
        # C is a multiple of p in [R, R + p). Each limb lends 2^52 to the one below, which uses up
        # the top limb, a 1. So a limb of m can be subtracted from each.
        offset = _limbs([-(-r // p) * p - r], self.limbs)[0] + np.uint64((1 << LIMB_BITS) - 1)
        offset[0] += np.uint64(1)
        constants = aligned(2, self.limbs, LANES)
        constants[0] = _limbs([p], self.limbs)[0][:, None]
        constants[1] = offset[:, None]
        inverse = aligned(LANES)
        inverse[:] = -g.invert(p, 1 << LIMB_BITS) % (1 << LIMB_BITS)
        prime, lend = constants.reshape(2, -1)
        self._constants = (prime, lend, inverse)

    def slots(self, count: int) -> Words:
        """Return room for `count` numbers in each lane: uint64 (count, 2, LANES limbs)."""
        return aligned(count, 2, LANES * self.limbs)

    def put(self, slot: Words, numbers: Sequence[Big]) -> None:
        """Write up to LANES numbers in [0, p^2), in Montgomery's form; other lanes get 0."""
        shift, square, p = self._shift, self._square, self._p
        halves = [half for number in numbers for half in divmod((number << shift) % square, p)]
        words = _limbs(halves, self.limbs).reshape(-1, 2, self.limbs)
        out = slot.reshape(2, self.limbs, LANES)
        out[:, :, len(numbers) :] = 0
        out[:, :, : len(numbers)] = words[:, ::-1].transpose(1, 2, 0)  # y was first, the quotient

    def put_one(self, slot: Words) -> None:
        """Write 1: multiplying by it takes a number out of Montgomery's form."""
        slot[:] = 0
        slot[0, :LANES] = 1

    def get(self, slot: Words, count: int) -> list[Big]:
        """Read `count` numbers that have left Montgomery's form, in [0, p^2)."""
        words = slot.reshape(2, self.limbs, LANES)[:, :, :count].transpose(2, 0, 1)
        halves = _numbers(words.reshape(-1, self.limbs))
        pairs = zip(halves[::2], halves[1::2], strict=True)
        return [(x + self._p * y) % self._square for x, y in pairs]

    def run(
        self,
        program: NDArray[np.int64],
        slots: Words,
        table: Words | None = None,
        digits: NDArray[Any] | None = None,
    ) -> None:
        """Run a program, as described at the kernel, without Python's lock."""
        from flhe.schemes.batchcrypt import power_kernels as kernels

        kernels.run(
            program,
            slots,
            *self._constants,
            aligned(6, LANES * self.limbs),
            kernels.EMPTY_TABLE if table is None else table,
            kernels.EMPTY_DIGITS if digits is None else digits,
        )

"""LimbPacking: residues modulo several moduli as they travel, limb after limb.

Each limb is packed by itself (`flhe.coding.pack`), with as many bits a residue as the longest modulus
has; residues of 64 bits are little-endian words. Before anything is computed with them, `check` says
whether they are below their modulus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import Packing
from flhe.errors import ConfigError, ProtocolError
from flhe.math.prime_ring import PrimeRing

PIECE = 1 << 14
"""Residues that are worked on at a time, a multiple of what `Packing` cuts at: they stay in a core's
own cache."""

Residues = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LimbPacking:
    """How residues of `bits` bits, 33 to 64, lie in bytes; `moduli`: one for each limb, none longer."""

    bits: int
    moduli: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 33 <= self.bits <= 64:
            raise ConfigError(f"LimbPacking(bits={self.bits}): bits must be 33 to 64")
        if not self.moduli or max(self.moduli) >> self.bits:
            raise ConfigError(f"LimbPacking: a modulus is longer than {self.bits} bits")

    @property
    def _packing(self) -> Packing:
        return Packing(self.bits)

    def nbytes(self, count: int) -> int:
        """Bytes that `count` residues of each limb take."""
        return len(self.moduli) * self._packing.nbytes(count)

    def read(self, data: NDArray[np.uint8], count: int, limb: int, at: int, out: Residues) -> None:
        """Residues of one limb from number `at` on, a multiple of PIECE, into `out`.

        `count` is the number of residues that each limb has in `data`.
        """
        part = self._cut(data, count, limb, at, out.size)
        if self.bits == 64:
            out.view(np.uint8)[:] = part
            return
        # Of several limbs, all but the first begin anywhere: kernels are for whole words.
        self._packing.unpack(part.copy(), np.zeros(out.size, np.uint64), out.view(np.int64))
        np.bitwise_and(out, np.uint64((1 << self.bits) - 1), out=out)  # it extends the sign

    def write(
        self, residues: Residues, data: NDArray[np.uint8], count: int, limb: int, at: int
    ) -> None:
        """Inverse of `read`."""
        part = self._cut(data, count, limb, at, residues.size)
        if self.bits == 64:
            part[:] = residues.view(np.uint8)
            return
        part[:] = self._packing.pack(residues.view(np.int64), np.zeros(residues.size, np.uint64))

    def pieces(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(limb, start, stop) of all that is there, piece by piece."""
        for limb in range(len(self.moduli)):
            for at in range(0, count, PIECE):
                yield limb, at, min(at + PIECE, count)

    def check(self, data: NDArray[np.uint8], count: int) -> None:
        """Refuse what no residues are written as; ProtocolError.

        That is a residue which is not below its modulus, and bits after a limb's last residue.
        """
        whole, used = self._packing.nbytes(count), count * self.bits % 8
        if used and (data[whole - 1 :: whole] >> used).any():
            raise ProtocolError("bits after the last residue")
        space = np.empty(min(PIECE, count), np.uint64)
        for limb, at, end in self.pieces(count):
            self.read(data, count, limb, at, space[: end - at])
            if int(space[: end - at].max()) >= self.moduli[limb]:
                raise ProtocolError("a residue is not below its modulus")

    def _cut(
        self, data: NDArray[np.uint8], count: int, limb: int, at: int, size: int
    ) -> NDArray[np.uint8]:
        whole = self._packing.nbytes(count)
        part = data[limb * whole : (limb + 1) * whole]
        return self._packing.cut(part, at, at + size)

    def add(
        self,
        total: NDArray[np.uint8],
        part: NDArray[np.uint8],
        count: int,
        rings: Sequence[PrimeRing],
    ) -> None:
        """Add the residues of `part` to those of `total`, in place, each modulo its limb's."""
        space = np.empty((2, PIECE), np.uint64)
        for limb, at, end in self.pieces(count):
            ours, theirs = space[:, : end - at]
            self.read(total, count, limb, at, ours)
            self.read(part, count, limb, at, theirs)
            rings[limb].add(ours, theirs, ours)
            self.write(ours, total, count, limb, at)

"""Limbs: residues modulo several moduli, packed limb after limb, with as many bits as each needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import Packing
from flhe.errors import ProtocolError
from flhe.math.ring import Elements, PrimeRing

PIECE = 1 << 14
"""Residues that are processed at a time, a multiple of the block of `Packing`: they stay in a
core's own cache."""


@dataclass(frozen=True, slots=True)
class LimbPacking:
    """Layout of residues of `bits` bits, 33 to 64; `moduli`: one for each limb, none longer.

    Each limb is packed separately, with as many bits a residue as the longest modulus has; residues
    of 64 bits are little-endian words. Call `check` before computing with residues: it refuses
    those not below their modulus.
    """

    bits: int
    moduli: tuple[int, ...]

    @property
    def _packing(self) -> Packing:
        return Packing(self.bits)

    def nbytes(self, count: int) -> int:
        """Return the bytes that `count` residues of each limb take."""
        return len(self.moduli) * self._packing.nbytes(count)

    def read(self, data: NDArray[np.uint8], count: int, limb: int, at: int, out: Elements) -> None:
        """Read elements of one limb from number `at` on, a multiple of PIECE, into `out`.

        `count` is the number of residues that each limb has in `data`.
        """
        part = self._cut(data, count, limb, at, out.size)
        if self.bits == 64:
            out.view(np.uint8)[:] = part
            return
        # With several limbs, all but the first may be unaligned: kernels need whole words.
        self._packing.unpack(part.copy(), np.zeros(out.size, np.uint64), out.view(np.int64))
        np.bitwise_and(out, np.uint64((1 << self.bits) - 1), out=out)  # the kernel extends the sign

    def write(
        self, residues: Elements, data: NDArray[np.uint8], count: int, limb: int, at: int
    ) -> None:
        """Invert `read`."""
        part = self._cut(data, count, limb, at, residues.size)
        if self.bits == 64:
            part[:] = residues.view(np.uint8)
            return
        part[:] = self._packing.pack(residues.view(np.int64), np.zeros(residues.size, np.uint64))

    def pieces(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield (limb, start, stop) of all residues, piece by piece."""
        for limb in range(len(self.moduli)):
            for at in range(0, count, PIECE):
                yield limb, at, min(at + PIECE, count)

    def check(self, data: NDArray[np.uint8], count: int) -> None:
        """Refuse bytes that are not canonical residues; ProtocolError.

        That is a residue not below its modulus, or bits after a limb's last residue.
        """
        from flhe.math import residue_kernels

        size, used = self._packing.nbytes(count), count * self.bits % 8
        if used and (data[size - 1 :: size] >> used).any():
            raise ProtocolError("bits after the last residue")
        for limb, q in enumerate(self.moduli):
            (words, rest), modulus = self._parts(data, count, limb), np.uint64(q)
            if self.bits == 64:
                fits = residue_kernels.words_below(words, modulus)
            else:
                fits = residue_kernels.below(words, self.bits, modulus)
                fits &= residue_kernels.rest_below(rest, count % PIECE, self.bits, modulus)
            if not fits:
                raise ProtocolError("a residue is not below its modulus")

    def _parts(
        self, data: NDArray[np.uint8], count: int, limb: int
    ) -> tuple[Elements, NDArray[np.uint8]]:
        """Return views of one limb: the words of whole pieces, perhaps unaligned, and the rest.

        Residues of 64 bits are all in words.
        """
        whole = count if self.bits == 64 else count // PIECE * PIECE
        part = self._cut(data, count, limb, 0, count)
        return part[: whole * self.bits // 8].view(np.uint64), part[whole * self.bits // 8 :]

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
        from flhe.math import residue_kernels

        for limb, q in enumerate(self.moduli):
            (ours, our_rest), (theirs, their_rest) = (
                self._parts(data, count, limb) for data in (total, part)
            )
            if self.bits == 64:
                rings[limb].add(ours, theirs, ours)
                continue
            residue_kernels.add(ours, theirs, self.bits, np.uint64(q))
            residue_kernels.add_rest(our_rest, their_rest, count % PIECE, self.bits, np.uint64(q))

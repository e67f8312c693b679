"""Bit packing: signed integers modulo 2**bits, exactly `bits` bits each on the wire.

`flhe.math.kernels` describes the layout and does the work. Packing and unpacking also add a mask,
so a scheme needs no extra pass over the vector.

Residues modulo several moduli travel limb after limb (`LimbPacking`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.math import COLUMNS
from flhe.math.buffers import fixed
from flhe.math.ring import Elements, PrimeRing

PIECE = 1 << 14
"""Residues that are processed at a time, a multiple of the block of `Packing`: they stay in a
core's own cache."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Layout of integers of `bits` bits, 1 to 64, in bytes."""

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise ConfigError(f"Packing(bits={self.bits}): bits must be 1 to 64")

    @property
    def word_bits(self) -> int:
        """Bits of one word and of one lane: 32, or 64 when a value needs more."""
        return 32 if self.bits <= 32 else 64

    @property
    def lane(self) -> type[np.unsignedinteger[Any]]:
        """Type of a mask lane."""
        return np.uint32 if self.word_bits == 32 else np.uint64

    @property
    def signed(self) -> type[np.signedinteger[Any]]:
        """Type of an unpacked value."""
        return np.int32 if self.word_bits == 32 else np.int64

    @property
    def block(self) -> int:
        """Values in a whole block."""
        return self.word_bits * COLUMNS

    def nbytes(self, length: int) -> int:
        """Return the bytes that `length` values take."""
        return (length * self.bits + 7) // 8

    def cut(self, data: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of values [start, stop), a view; `start` is a multiple of `block`."""
        first = start * self.bits // 8
        return data[first : first + self.nbytes(stop - start)]

    def _split(self, length: int) -> tuple[int, int]:
        """Return the values in whole blocks, and their bytes."""
        whole = length // self.block * self.block
        return whole, whole * self.bits // 8

    def pack(
        self, values: NDArray[Any], mask: NDArray[Any], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Pack (values + mask) mod 2**bits. Shapes (length,); the mask's dtype is `lane`."""
        from flhe.math import kernels

        if out is None:
            out = np.empty(self.nbytes(values.size), np.uint8)
        whole, nbytes = self._split(values.size)
        if whole:
            kernel = kernels.pack32 if self.word_bits == 32 else kernels.pack64
            masks, words = self._values(mask[:whole]), self._words(out[:nbytes])
            kernel(self._values(values[:whole]), masks, self.bits, words)
        if whole < values.size:
            rest = values[whole:].astype(self.signed, copy=False)
            kernels.pack_rows(rest[None], mask[whole:], self.bits, out[None, nbytes:])
        return out

    def unpack(
        self, data: NDArray[np.uint8], mask: NDArray[Any], out: NDArray[Any]
    ) -> NDArray[Any]:
        """Unpack signed (value + mask) mod 2**bits into `out`, shape (length,), dtype `signed`."""
        from flhe.math import kernels

        self.check(data, out.size)
        whole, nbytes = self._split(out.size)
        data = fixed(data)
        if whole:
            kernel = kernels.unpack32 if self.word_bits == 32 else kernels.unpack64
            masks, values = self._values(mask[:whole]), self._values(out[:whole])
            kernel(self._words(data[:nbytes]), masks, self.bits, values)
        if whole < out.size:
            rest = out[None, whole:]
            kernels.unpack_rows(data[None, nbytes:], mask[whole:], self.bits, rest)
        return out

    def _values(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self.word_bits, COLUMNS)

    def _words(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        return data.view(self.lane).reshape(-1, self.bits, COLUMNS)

    def signed_of(self, lanes: NDArray[Any]) -> NDArray[Any]:
        """Convert lanes modulo 2**bits to signed values, (length,), dtype `signed`; in place."""
        shift = self.word_bits - self.bits
        np.left_shift(lanes, shift, out=lanes)
        values: NDArray[Any] = lanes.view(self.signed)
        np.right_shift(values, shift, out=values)
        return values

    def add(self, total: NDArray[np.uint8], part: NDArray[np.uint8], length: int) -> None:
        """Add packed `part` to packed `total` in place, each value modulo 2**bits."""
        from flhe.math import kernels

        self.check(total, length)
        self.check(part, length)
        whole, nbytes = self._split(length)
        if whole:
            kernel = kernels.add32 if self.word_bits == 32 else kernels.add64
            tops, words = _tops(self.bits, self.word_bits), self._words(fixed(part[:nbytes]))
            kernel(self._words(total[:nbytes]), words, self.bits, tops)
        if whole < length:
            # The same sum of fields as in the kernel, in one integer of Python's.
            top = _top_bits(self.bits, length - whole)
            x, y = (int.from_bytes(data[nbytes:], "little") for data in (total, part))
            low = (x & ~top) + (y & ~top)
            rest = (low ^ ((x ^ y) & top)).to_bytes(total.size - nbytes, "little")
            total[nbytes:] = np.frombuffer(rest, np.uint8)

    def check(self, data: NDArray[np.uint8], length: int) -> None:
        """Refuse data that is not exactly as long as `length` values, or has stray bits."""
        if data.size != self.nbytes(length):
            raise ProtocolError(
                f"ciphertext of {data.size} bytes, {length} values of {self.bits} bits take "
                f"{self.nbytes(length)}"
            )
        used = length * self.bits % 8
        if used and int(data[-1]) >> used:
            raise ProtocolError("ciphertext with bits after the last value")


@functools.lru_cache
def _top_bits(bits: int, count: int) -> int:
    """Return ones at the top bits of `count` values in a row."""
    top = ((1 << (bits * count)) - 1) // ((1 << bits) - 1)
    return top << (bits - 1)


@functools.cache
def _tops(bits: int, word_bits: int) -> NDArray[Any]:
    """Return, word by word of a column, a one at the top bit of each value."""
    words = [0] * bits
    for r in range(word_bits):
        top = r * bits + bits - 1
        words[top // word_bits] |= 1 << (top % word_bits)
    tops = np.array(words, np.uint32 if word_bits == 32 else np.uint64)
    tops.flags.writeable = False
    return tops


@dataclass(frozen=True, slots=True)
class LimbPacking:
    """Layout of residues of `bits` bits, 33 to 64; `moduli`: one for each limb, none longer.

    Each limb is packed separately, with as many bits a residue as the longest modulus has; residues
    of 64 bits are little-endian words. Call `check` before computing with residues: it refuses
    those not below their modulus.
    """

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

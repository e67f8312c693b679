"""Bit packing: signed integers modulo 2**bits, exactly `bits` bits each on the wire.

`flhe.math.kernels` describes the layout and does the work. Packing and unpacking also add a mask,
so a scheme needs no extra pass over the vector.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.math import COLUMNS
from flhe.math.buffers import fixed
from flhe.math.keystream import BLOCK, CHUNK, OpenSsl, Terms


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

    def seal(
        self,
        values: NDArray[Any],
        stream: OpenSsl,
        terms: Terms,
        start: int,
        out: NDArray[np.uint8],
    ) -> None:
        """Pack values under a sum of streams from lane `start` on, a multiple of `block`."""
        from flhe.math import kernels

        done, nbytes = self._split(values.size)
        if done and (streams := stream.compiled(terms, self._block_of(start))) is not None:
            kernel = kernels.seal32 if self.word_bits == 32 else kernels.seal64
            words = self._words(out[:nbytes])
            kernel(self._values(values[:done]), streams, self.bits, words)
        else:
            done = 0
        for at, end, lanes in self._lanes(stream, terms, start, done, values.size):
            self.pack(values[at:end], lanes, self.cut(out, at, end))

    def open(
        self, data: NDArray[np.uint8], stream: OpenSsl, terms: Terms, start: int, out: NDArray[Any]
    ) -> None:
        """Unpack signed values, with the sum of streams from lane `start` on, a multiple of `block`."""
        from flhe.math import kernels

        self.check(data, out.size)
        done, nbytes = self._split(out.size)
        if done and (streams := stream.compiled(terms, self._block_of(start))) is not None:
            kernel = kernels.open32 if self.word_bits == 32 else kernels.open64
            words = self._words(fixed(data[:nbytes]))
            kernel(words, streams, self.bits, self._values(out[:done]))
        else:
            done = 0
        for at, end, lanes in self._lanes(stream, terms, start, done, out.size):
            self.unpack(self.cut(data, at, end), lanes, out[at:end])

    def _block_of(self, lane: int) -> int:
        return lane * self.word_bits // (8 * BLOCK)

    def _lanes(
        self, stream: OpenSsl, terms: Terms, start: int, first: int, stop: int
    ) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield pieces of [first, stop), and their lanes, which the next ones overwrite."""
        step = 8 * CHUNK // self.word_bits
        held = np.empty(min(step, stop - first) + 8 * BLOCK // self.word_bits, self.lane)
        for at in range(first, stop, step):
            end = min(at + step, stop)
            stream.into(held, end - at, self._block_of(start + at), terms)
            yield at, end, held[: end - at]

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

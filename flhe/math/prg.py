"""Prg: pseudorandom words, rounding values and field elements, from keystreams."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.keystream import BLOCK, CHUNK, FIRST, Stream, keystream
from flhe.math.ring import Elements, Q
from flhe.wire.secret import Random


def words(key: bytes, start: int, count: int) -> Iterator[tuple[int, Elements]]:
    """Yield words start, start + 1, ... of stream 0, little-endian, a cache's worth at a time.

    Yields the number of words before, and uint64 (some,), which the next words overwrite: an even
    number of them from an even start on.
    """
    # An AES block holds two words: if the first word is the second of its two, skip one.
    block, skip = divmod(start, BLOCK // 8)
    stream, most, at = keystream(key, 8 * count), CHUNK // 8, 0
    # `into` needs a spare block.
    held = np.empty(min(most, skip + count) + BLOCK // 8, np.uint64)
    while at < count:
        size = min(most - skip, count - at)
        stream.into(held, skip + size, block, FIRST)
        yield at, held[skip : skip + size]
        at, skip, block = at + size, 0, block + CHUNK // BLOCK


def drawn(random: Random, count: int) -> bytes:
    """Return `count` bytes of a random source; ConfigError if it gives another number of them."""
    data = random(count)
    if len(data) != count:  # fewer would make secrets short, or repeat them
        raise ConfigError(f"the random source gave {len(data)} bytes, {count} were asked for")
    return data


class Rounding(Protocol):
    """Source of independent uniform 16-bit integers, for stochastic rounding."""

    def next(self, count: int) -> NDArray[np.uint16]:
        """Return the next `count`, at most PIECE; overwritten by the next call."""

    def compiled(self, count: int) -> Any:
        """Return arguments with which a kernel makes the next `count` itself, and go on by as many.

        None if no kernel makes them.
        """
        return None


PIECE = CHUNK // 4
"""Values that are rounded at a time: input, rounding values and output fit a core's own cache."""


class SecureRounding(Rounding):
    """Uniform 16-bit integers from a CSPRNG: AES-256-CTR under a fresh system key."""

    __slots__ = ("_block", "_held", "_stream")

    def __init__(self) -> None:
        # Stream 0 from block 0: safe because the key is drawn anew, for this object alone.
        self._stream = keystream(secrets.token_bytes(32))
        self._held, self._block = np.empty(PIECE // 2 + BLOCK // 4, np.uint32), 0

    def next(self, count: int) -> NDArray[np.uint16]:
        """Return the next `count`, at most PIECE; overwritten by the next call."""
        self._stream.into(self._held, -(-count // 2), self._skip(count), FIRST)
        return self._held.view(np.uint16)[:count]

    def compiled(self, count: int) -> Any:
        """Return arguments with which a kernel makes the next `count` itself, and go on by as many."""
        made = self._stream.compiled(FIRST, self._block)
        if made is not None:
            self._skip(count)
        return made

    def _skip(self, count: int) -> int:
        """Go on by `count` integers; return the block where they begin."""
        first = self._block
        self._block += -(-2 * count // BLOCK)
        return first


# --- uniform field elements ---

_ONES = (1 << 64) - 1


class FieldElements:
    """Uniform elements of a prime field, in blocks, under one key.

    Position i of block j of n elements is 64-bit word j * n + i of stream 0, little-endian, cut to
    as many low bits as the modulus has. Words not below the modulus (one in 2**32 for Goldilocks)
    are rejected: stream 1 + j, cut likewise, replaces those of block j, in order. So any thread can
    make any block. The key, 32 bytes, is for these elements alone. The modulus, 2 to 2**64 - 1, is
    best just below a power of two, because replacing is slow.
    """

    __slots__ = ("_key", "_mask", "_modulus")

    def __init__(self, key: bytes, modulus: int = Q) -> None:
        self._key = key
        self._modulus = modulus
        self._mask = (1 << (modulus - 1).bit_length()) - 1

    def blocks(self, first: int, count: int, n: int, scratch: Elements | None = None) -> Elements:
        """Return blocks first to first + count - 1: uint64 (count, n).

        They lie in `scratch`, if given: uint64, at least count * n + 3. That saves fresh pages.
        """
        # All at once, in place: see `words`.
        start, skip = divmod(first * n, BLOCK // 8)
        size = skip + count * n
        held = np.empty(size + BLOCK // 8, np.uint64) if scratch is None else scratch
        keystream(self._key, 8 * size).into(held, size, start, FIRST)
        out = held[skip:size].reshape(count, n)
        if self._mask != _ONES:
            out &= np.uint64(self._mask)
        if out.size and int(out.max()) >= self._modulus:
            for row in np.flatnonzero((out >= self._modulus).any(axis=1)):
                self._replace(first + int(row), out[row])
        return out

    def _replace(self, j: int, block: Elements) -> None:
        """Replace rejected words of block j by words of stream 1 + j, in place."""
        stream = Stream(self._key, 1 + j)
        pair = np.empty(2 * BLOCK // 8, np.uint64)

        def fresh() -> Iterator[int]:
            while True:
                stream.into(pair.view(np.uint8), BLOCK)
                cut = (word & self._mask for word in pair[: BLOCK // 8].tolist())
                yield from (word for word in cut if word < self._modulus)

        for i, word in zip(np.flatnonzero(block >= self._modulus), fresh(), strict=False):
            block[i] = word


def random_elements(count: int, random: Random = secrets.token_bytes) -> Elements:
    """Return independent uniform elements of the Goldilocks field, uint64 (count,).

    Raises ConfigError: a random source that gives another number of bytes than requested.
    """

    def fresh(count: int) -> Elements:
        return np.frombuffer(drawn(random, 8 * count), "<u8").astype(np.uint64)

    out = fresh(count)
    while (useless := np.flatnonzero(out >= Q)).size:
        out[useless] = fresh(useless.size)
    return out

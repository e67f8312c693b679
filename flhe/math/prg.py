"""Prg: a keystream by AES-256 in counter mode, addressed by stream and position.

Stream `j` under a key is AES-256-CTR with the counter block starting at be64(j) | be64(0). Position
is counted in 16-byte blocks, so any part of a stream can be made on any thread. OpenSSL computes
short streams, through `cryptography`, and long ones where the processor has no vector AES.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError
from flhe.math.ring import Elements, Q
from flhe.wire.secret import Random

BLOCK = 16
"""Bytes in one AES block."""

_ZEROS = bytes(1 << 18)
"""Input of the cipher; 256 KiB keeps source and target in a core's own cache."""

CHUNK = len(_ZEROS)
"""Maximum bytes of one call of `into`."""


class Stream:
    """Stream `number` under a 32-byte key, from 16-byte block `block` on, read forwards."""

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes, number: int, block: int = 0) -> None:
        if len(key) != 32:
            raise ConfigError(f"Stream: key of {len(key)} bytes, AES-256 takes 32")
        if not (0 <= number < 1 << 64 and 0 <= block < 1 << 64):
            raise ConfigError("Stream: its number and the block must fit 64 bits")
        counter = number.to_bytes(8, "big") + block.to_bytes(8, "big")
        # The counter block is fixed by (number, block). Safe because every key is derived for one
        # purpose and one slot, and a stream under it is only ever a mask for that slot.
        self._encryptor = Cipher(AES256(key), CTR(counter)).encryptor()

    def into(self, out: NDArray[np.uint8], nbytes: int) -> None:
        """Write the next `nbytes` (at most CHUNK) into `out`, which is at least BLOCK longer."""
        self._encryptor.update_into(memoryview(_ZEROS)[:nbytes], out.data)


class OpenSsl:
    """Long streams under one key, by OpenSSL."""

    __slots__ = ("_held", "_key", "_next")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._held = np.empty(CHUNK + BLOCK, np.uint8)
        self._next: dict[tuple[int, int], Stream] = {}

    def into(
        self, out: NDArray[Any], count: int, block: int, added: Sequence[int], taken: Sequence[int]
    ) -> None:
        """Write the sum of streams into out[:count], modulo the lane, from 16-byte block `block` on.

        `added` and `taken` are their numbers: those are added, these subtracted. Lanes are uint32 or
        uint64, little-endian; `out` is at least BLOCK bytes longer than `count` lanes.
        """
        step = CHUNK // out.itemsize
        for at in range(0, count, step):
            size = min(step, count - at)
            part, nbytes = out[at : at + size], size * out.itemsize
            if not added:
                part[:] = 0
            for i, number in enumerate([*added, *taken]):
                # A new cipher costs a tenth of a chunk: one that was read up to here goes on.
                stream = self._next.pop((number, block), None) or Stream(self._key, number, block)
                stream.into(self._held if i or not added else out[at:].view(np.uint8), nbytes)
                if nbytes % BLOCK == 0:
                    self._next[number, block + nbytes // BLOCK] = stream
                lanes = self._held[:nbytes].view(out.dtype)
                if i >= len(added):
                    np.subtract(part, lanes, out=part)
                elif i:
                    np.add(part, lanes, out=part)
            block += nbytes // BLOCK


class Vaes:
    """Long streams under one key, by the processor's vector AES."""

    __slots__ = ("_schedule",)

    def __init__(self, key: bytes) -> None:
        from flhe.math import aes_kernels

        self._schedule = np.zeros(4 * (aes_kernels.ROUNDS + 1), np.uint32)
        self._schedule[:8] = np.frombuffer(key, "<u4")
        aes_kernels.expand(self._schedule)

    def into(
        self, out: NDArray[Any], count: int, block: int, added: Sequence[int], taken: Sequence[int]
    ) -> None:
        """Write the sum of streams, as `OpenSsl.into` does."""
        from flhe.math import aes_kernels

        plus, minus = np.array(added, np.uint64), np.array(taken, np.uint64)
        aes_kernels.streams(self._schedule, plus, minus, np.uint64(block), out[:count])


@functools.cache
def fastest() -> type[Vaes] | type[OpenSsl]:
    """Return what makes long streams on this machine.

    Raises FlheError: vector AES and OpenSSL differ.
    """
    from flhe.math import aes_kernels

    if not aes_kernels.able():
        return OpenSsl
    # Fixed key and counters: what is encrypted here is compared, and nothing else.
    key, count = bytes(range(32)), CHUNK // 8
    ours, theirs = np.empty((2, count + BLOCK // 8), np.uint64)
    for cipher, out in ((Vaes, ours), (OpenSsl, theirs)):
        cipher(key).into(out, count, (1 << 32) - 3, (3, (1 << 64) - 1), (4,))
    if not np.array_equal(ours[:count], theirs[:count]):
        raise FlheError(
            "the processor's vector AES and OpenSSL's AES differ: one of them is broken on this "
            "machine; use another machine, or set NUMBA_CPU_FEATURES to a list without +vaes"
        )
    return Vaes


def keystream(key: bytes) -> OpenSsl | Vaes:
    """Return long streams under a 32-byte key, by the fastest AES-256 of this machine."""
    if len(key) != 32:
        raise ConfigError(f"keystream: key of {len(key)} bytes, AES-256 takes 32")
    # Counter blocks are fixed by (number, block). Safe as for `Stream`.
    return fastest()(key)


def words(key: bytes, start: int, count: int) -> Iterator[tuple[int, Elements]]:
    """Yield words start, start + 1, ... of stream 0, little-endian, a cache's worth at a time.

    Yields the number of words before, and uint64 (some,), which the next words overwrite: an even
    number of them from an even start on.
    """
    # An AES block holds two words: if the first word is the second of its two, skip one.
    block, skip = divmod(start, BLOCK // 8)
    stream, most, at = keystream(key), CHUNK // 8, 0
    # `into` needs a spare block.
    held = np.empty(min(most, skip + count) + BLOCK // 8, np.uint64)
    while at < count:
        size = min(most - skip, count - at)
        stream.into(held, skip + size, block, (0,), ())
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


PIECE = CHUNK // 4
"""Values that are rounded at a time: input, rounding values and output fit a core's own cache."""


class SecureRounding:
    """Uniform 16-bit integers from a CSPRNG: AES-256-CTR under a fresh system key."""

    __slots__ = ("_block", "_held", "_stream")

    def __init__(self) -> None:
        # Stream 0 from block 0: safe because the key is drawn anew for this object and forgotten.
        self._stream = keystream(secrets.token_bytes(32))
        self._held, self._block = np.empty(PIECE // 2 + BLOCK // 4, np.uint32), 0

    def next(self, count: int) -> NDArray[np.uint16]:
        """Return the next `count`, at most PIECE; overwritten by the next call."""
        lanes = -(-count // 2)
        self._stream.into(self._held, lanes, self._block, (0,), ())
        self._block += -(-4 * lanes // BLOCK)
        return self._held.view(np.uint16)[:count]


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
        if not 2 <= modulus < 1 << 64:
            raise ConfigError(
                f"FieldElements(modulus={modulus}): the modulus must be 2 to 2**64 - 1"
            )
        self._key = key
        self._modulus = modulus
        self._mask = (1 << (modulus - 1).bit_length()) - 1

    def blocks(self, first: int, count: int, n: int, scratch: Elements | None = None) -> Elements:
        """Return blocks first to first + count - 1: uint64 (count, n).

        They lie in `scratch`, if given: uint64, at least count * n + 3. That saves fresh pages.
        """
        # All at once, in place: see `words`.
        start, skip = divmod(first * n, BLOCK // 8)
        size = skip + count * n + BLOCK // 8
        held = np.empty(size, np.uint64) if scratch is None else scratch[:size]
        keystream(self._key).into(held, skip + count * n, start, (0,), ())
        out = held[skip : skip + count * n].reshape(count, n)
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

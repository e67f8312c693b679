"""Keystreams: AES-256 in counter mode, addressed by stream and position.

Stream `j` under a key is AES-256-CTR with the counter block starting at be64(j) | be64(0). Position
is counted in 16-byte blocks, so any part of a stream can be made on any thread. OpenSSL computes
short streams, through `cryptography`, and long ones where the processor has no vector AES.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError
from flhe.math.buffers import fixed
from flhe.wire.secret import Secret

BLOCK = 16
"""Bytes in one AES block."""

_ZEROS = bytes(1 << 18)
"""Input of the cipher; 256 KiB keeps source and target in a core's own cache."""

CHUNK = len(_ZEROS)
"""Maximum bytes of one call of `Stream.into`."""

SHORT = CHUNK
"""Bytes of a stream from which compiled loops make it: OpenSSL takes 0.1 ms, loading them 0.5 s."""

Terms = tuple[Sequence[int], Sequence[int]]
"""Numbers of the streams that are added, and of those that are subtracted."""

FIRST: Terms = ((0,), ())
"""Stream 0 alone."""


_CHOOSING = threading.Lock()


class Stream:
    """Stream `number` under a 32-byte key, from 16-byte block `block` on, read forwards."""

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes, number: int, block: int = 0) -> None:
        counter = number.to_bytes(8, "big") + block.to_bytes(8, "big")
        # The counter block is fixed by (number, block). Safe because every key is derived for one
        # purpose and one slot, and a stream under it is only ever a mask for that slot.
        self._encryptor = Cipher(AES256(key), CTR(counter)).encryptor()

    def into(self, out: NDArray[np.uint8], nbytes: int) -> None:
        """Write the next `nbytes` (at most CHUNK) into `out`, which is at least BLOCK longer."""
        self._encryptor.update_into(memoryview(_ZEROS)[:nbytes], out.data)


class OpenSsl:
    """Streams under one key, by OpenSSL."""

    __slots__ = ("_held", "_key", "_next")

    PRICE: ClassVar[int] = 5
    """What a block alone costs, in blocks of a stream."""

    def __init__(self, key: bytes) -> None:
        self._key = Secret(key)
        self._held = np.empty(CHUNK + BLOCK, np.uint8)
        self._next: dict[tuple[int, int], Stream] = {}

    def __reduce__(self) -> Any:
        raise TypeError("a keystream has a key, and is not copied")

    def into(self, out: NDArray[Any], count: int, block: int, terms: Terms) -> None:
        """Write the sum of streams into out[:count], modulo the lane, from 16-byte block `block` on.

        Lanes are uint32 or uint64, little-endian; `out` is at least BLOCK bytes longer than `count`
        of them.
        """
        added, taken = terms
        step = CHUNK // out.itemsize
        for at in range(0, count, step):
            size = min(step, count - at)
            part, nbytes = out[at : at + size], size * out.itemsize
            # A new cipher costs a tenth of a chunk: one that was read up to here goes on.
            known, self._next = self._next, {}
            if not added:
                part[:] = 0
            for i, number in enumerate([*added, *taken]):
                stream = known.pop((number, block), None) or Stream(self._key, number, block)
                stream.into(self._held if i or not added else out[at:].view(np.uint8), nbytes)
                if nbytes % BLOCK == 0:
                    self._next[number, block + nbytes // BLOCK] = stream
                lanes = self._held[:nbytes].view(out.dtype)
                if i >= len(added):
                    np.subtract(part, lanes, out=part)
                elif i:
                    np.add(part, lanes, out=part)
            block += nbytes // BLOCK

    def compiled(self, terms: Terms, block: int) -> Any:
        """Return the arguments of kernels that make the sum of streams themselves: None."""
        return None

    def at(self, out: NDArray[Any], coords: NDArray[np.uint32], terms: Terms) -> None:
        """Write lanes `coords` of a sum of streams, ascending, into `out`, both (count,)."""
        if not coords.size:
            return
        blocks = (int(coords[-1]) - int(coords[0])) * out.itemsize // BLOCK + 1
        (self._few if coords.size * self.PRICE < blocks else self._many)(out, coords, terms)

    def _few(self, out: NDArray[Any], coords: NDArray[np.uint32], terms: Terms) -> None:
        """Encrypt one block for each."""
        added, taken = terms
        per, step = BLOCK // out.itemsize, CHUNK // BLOCK
        for at in range(0, coords.size, step):
            part, total = coords[at : at + step], out[at : at + step]
            counters = np.empty((part.size, 2), ">u8")
            counters[:, 1] = part // per
            total[:] = 0
            for i, number in enumerate([*added, *taken]):
                counters[:, 0] = number
                # ECB of counter blocks is counter mode of zeros; safe as for `Stream`.
                cipher = Cipher(AES256(self._key), ECB())  # noqa: S305
                made = cipher.encryptor().update(counters.tobytes())
                lanes = np.frombuffer(made, out.dtype).reshape(-1, per)
                picked = lanes[np.arange(part.size), part % per]
                total += picked if i < len(added) else -picked

    def _many(self, out: NDArray[Any], coords: NDArray[np.uint32], terms: Terms) -> None:
        """Make the whole stream between the first and the last."""
        from flhe.math import coordinate_kernels

        per, step = BLOCK // out.itemsize, CHUNK // out.itemsize
        held, first = np.empty(step + per, out.dtype), 0
        for start in range(int(coords[0]) // per * per, int(coords[-1]) + 1, step):
            # Of the coordinates' own type: NumPy would widen all of them first.
            end = np.uint32(min(start + step, 1 << 32) - 1)
            last = int(np.searchsorted(coords, end, "right"))
            if first < last:
                count = int(coords[last - 1]) - start + 1
                self.into(held, count, start // per, terms)
                part = fixed(coords[first:last])
                coordinate_kernels.gather(held, part, np.uint64(start), out[first:last])
            first = last


class Vaes(OpenSsl):
    """Long streams under one key, by the processor's vector AES."""

    __slots__ = ("_schedule",)

    PRICE: ClassVar[int] = 1

    def __init__(self, key: bytes) -> None:
        from flhe.math import aes_kernels

        self._key = Secret(key)
        self._schedule = np.zeros(4 * (aes_kernels.ROUNDS + 1), np.uint32)
        self._schedule[:8] = np.frombuffer(key, "<u4")
        aes_kernels.expand(self._schedule)

    def compiled(self, terms: Terms, block: int) -> Any:
        """Return the arguments of kernels that make the sum of streams themselves."""
        plus, minus = (np.array(numbers, np.uint64) for numbers in terms)
        return self._schedule, plus, minus, np.uint64(block)

    def into(self, out: NDArray[Any], count: int, block: int, terms: Terms) -> None:
        """Write the sum of streams, as `OpenSsl.into` does."""
        from flhe.math import aes_kernels

        if out.size < count:  # the loop does not check
            raise ConfigError(f"keystream: {count} lanes do not fit {out.size}")
        aes_kernels.streams(*self.compiled(terms, block), out[:count])

    def _few(self, out: NDArray[Any], coords: NDArray[np.uint32], terms: Terms) -> None:
        from flhe.math import aes_kernels

        if coords.size < aes_kernels.BLOCKS:
            super()._few(out, coords, terms)
            return
        schedule, plus, minus, _ = self.compiled(terms, 0)
        aes_kernels.streams_at(schedule, plus, minus, fixed(coords), out)


def fastest() -> type[OpenSsl]:
    """Return what makes long streams on this machine.

    Raises FlheError: vector AES and OpenSSL differ.
    """
    with _CHOOSING:  # one thread at a time: the first one loads numba
        return _fastest()


@functools.cache
def _fastest() -> type[OpenSsl]:
    from flhe.math import aes_kernels

    if not aes_kernels.able():
        return OpenSsl
    # Fixed key and counters: what is encrypted here is compared, and nothing else.
    key, count = bytes(range(32)), CHUNK // 4
    ours, theirs = np.empty((2, count + BLOCK // 4), np.uint32)
    for cipher, out in ((Vaes, ours), (OpenSsl, theirs)):
        cipher(key).into(out, count, (1 << 32) - 3, ((3, (1 << 64) - 1), (4,)))
    if not np.array_equal(ours[:count], theirs[:count]):
        raise FlheError(
            "the processor's vector AES and OpenSSL's AES differ: one of them is broken on this "
            "machine; use another machine, or set NUMBA_CPU_FEATURES to a list without +vaes"
        )
    return Vaes


def keystream(key: bytes, nbytes: int = CHUNK) -> OpenSsl:
    """Return streams under a 32-byte key, by the fastest AES-256 of this machine.

    If fewer than SHORT bytes are wanted, OpenSSL makes them: numba takes longer to load.
    """
    if len(key) != 32:
        raise ConfigError(f"keystream: key of {len(key)} bytes, AES-256 takes 32")
    # Counter blocks are fixed by (number, block). Safe as for `Stream`.
    return (OpenSsl if nbytes < SHORT else fastest())(key)

"""Support: the coordinates that one sender encrypts.

    byte     0          bitmap, or 1 + p for Rice coding with parameter p
    bytes    1 to 4     number of coordinates, big-endian
    then                the bits, lowest first in every byte; those of the last byte unused are zero

The bitmap has bit d % 8 of byte d // 8 set for coordinate d. Rice coding writes, for each
coordinate, the number g of others skipped before it: g >> p zeros, a one, then the low p bits of g,
lowest first.

The shorter of the two is used, the bitmap on a tie, with the lowest of the best parameters. So a
set has exactly one encoding, and others are refused: its hash identifies the set.

Gaps of a random set are geometric, for which Rice codes are nearly optimal. In any set, n of L
coordinates take at most n (1 + p) + (L - n) / 2**p bits for every p.

Source: Rice and Plaunt, 1971; Golomb, 1966. FLASHE, Sec. 4.1 sends a bitmap (its mask M').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty, fixed
from flhe.wire.derive import hash_of

HEADER = 5
"""Bytes before the bits."""

BITMAP = 0
MAX_PARAMETER = 31
MAX_LENGTH = (1 << 31) - 1
"""Maximum number of coordinates of a layout."""


@dataclass(frozen=True, slots=True)
class Support:
    """A coded set of `count` coordinates below `length`; made by `of` and `from_bytes`.

    `coords` are the coordinates, ascending, uint32 (count,), read-only.
    """

    length: int
    count: int
    data: bytes = field(repr=False)
    coords: NDArray[np.uint32] = field(repr=False, compare=False)

    @classmethod
    def of(cls, coords: NDArray[np.uint32], length: int) -> Support:
        """Code `coords`, uint32 (count,).

        Raises ConfigError: coordinates that do not ascend or lie beyond `length`, or a length of 2**31
        or more.
        """
        _check_length(length)
        kept = np.array(coords, np.uint32)
        kept.flags.writeable = False
        data = _encode(kept, length)
        if data is None:
            raise ConfigError(f"Support: coordinates must ascend and lie below {length}")
        return cls(length, kept.size, data, kept)

    @classmethod
    def from_bytes(cls, data: bytes, length: int) -> Support:
        """Return the support that a sender claims, over a layout of `length` coordinates.

        Raises ConfigError: a length of 2**31 or more; ProtocolError: anything but the one encoding
        of a set. Claimed sizes are checked against the size of the data before memory is allocated.
        """
        _check_length(length)
        # A sender can always use the bitmap, so longer data is never valid.
        if not HEADER <= len(data) <= HEADER + _bytes(length):
            raise ProtocolError(
                f"support: {len(data)} bytes, {HEADER} to {HEADER + _bytes(length)} are accepted"
            )
        data = bytes(data)
        coords = _decode(data, length)
        coords.flags.writeable = False
        if _encode(coords, length) != data:
            raise ProtocolError("support: a longer encoding than its set needs")
        return cls(length, coords.size, data, coords)

    def bitmap(self) -> NDArray[np.uint64]:
        """Return bit d % 64 of word d // 64 for every coordinate d, uint64 (ceil(length / 64),)."""
        return _bitmap(self.coords, self.length)

    def digest(self) -> bytes:
        """Return the SHA-256 over the set and its length, 32 bytes."""
        return hash_of("support", self.length, self.data)


def covered(supports: Sequence[Support]) -> NDArray[np.uint32]:
    """Return the coordinates in at least one support, ascending, read-only, shape (union,)."""
    first, *others = supports
    if not others:
        return first.coords
    words = first.bitmap()
    for support in others:
        words |= support.bitmap()
    return fixed(members(words))


def members(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the coordinates in a bitmap, ascending, shape (count,)."""
    from flhe.math import sparse_kernels

    out = empty(sparse_kernels.size_of(words), np.uint32)
    sparse_kernels.members(words, out)
    return out


def _check_length(length: int) -> None:
    if not 0 <= length <= MAX_LENGTH:
        raise ConfigError(f"Support: a length of {length}, it must be 0 to {MAX_LENGTH}")


def _bitmap(coords: NDArray[np.uint32], length: int) -> NDArray[np.uint64]:
    from flhe.math import sparse_kernels

    words = np.zeros(-(-length // 64), np.uint64)
    sparse_kernels.mark(fixed(coords), words)
    return words


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _best(gaps: NDArray[np.uint32], length: int) -> tuple[int, int]:
    """Return the bits of the best Rice coding of these gaps, and the lowest parameter with them.

    From p to p + 1 the codes grow by one bit each and save half of their zeros. The saving can only
    fall as p grows, so the cost is convex: walking downhill from anywhere finds its minimum.
    """
    from flhe.math import coordinate_kernels

    p = (length // max(gaps.size, 1)).bit_length() - 1 if gaps.size else 0
    p = min(max(p, 0), MAX_PARAMETER)
    bits = coordinate_kernels.rice_bits(gaps, p)
    while p > 0 and (fewer := coordinate_kernels.rice_bits(gaps, p - 1)) <= bits:
        p, bits = p - 1, fewer
    while p < MAX_PARAMETER and (fewer := coordinate_kernels.rice_bits(gaps, p + 1)) < bits:
        p, bits = p + 1, fewer
    return bits, p


def _encode(coords: NDArray[np.uint32], length: int) -> bytes | None:
    """Return the encoding; None for coordinates that do not ascend or lie beyond `length`."""
    from flhe.math import coordinate_kernels

    gaps = np.empty(coords.size, np.uint32)
    if not coordinate_kernels.gaps_of(fixed(coords), length, gaps):
        return None
    bits, p = _best(gaps, length)
    if _bytes(length) <= _bytes(bits):
        kind, size, words = BITMAP, _bytes(length), _bitmap(coords, length)
    else:
        kind, size = 1 + p, _bytes(bits)
        words = np.zeros(bits // 64 + 2, np.uint64)
        coordinate_kernels.rice_write(gaps, p, words)
    header = bytes([kind]) + coords.size.to_bytes(4, "big")
    return header + words.view(np.uint8)[:size].tobytes()


def _decode(data: bytes, length: int) -> NDArray[np.uint32]:
    """Return coordinates, ascending and below `length`, of untrusted data."""
    from flhe.math import coordinate_kernels, sparse_kernels

    kind, count = data[0], int.from_bytes(data[1:HEADER], "big")
    bits = 8 * (len(data) - HEADER)
    words = np.zeros(bits // 64 + 3, np.uint64)
    words.view(np.uint8)[: len(data) - HEADER] = np.frombuffer(data, np.uint8, offset=HEADER)
    if kind == BITMAP:
        beyond = bits != 8 * _bytes(length) or data[-1] >> (8 - -length % 8) if length else bits
        if beyond or count != sparse_kernels.size_of(words):
            raise ProtocolError("support: the bitmap is not one of so many of its coordinates")
        return members(words)
    p = kind - 1
    if p > MAX_PARAMETER:
        raise ProtocolError(f"support: kind {kind} does not exist")
    if count > length or count * (p + 1) > bits:
        raise ProtocolError("support: it claims more coordinates than it has room for")
    coords = np.empty(count, np.uint32)
    read = coordinate_kernels.rice_read(words, bits, p, length, coords)
    if read < 0 or _bytes(read) != len(data) - HEADER or (read % 8 and data[-1] >> (read % 8)):
        raise ProtocolError("support: the code is cut short, runs on or leaves the layout")
    return coords

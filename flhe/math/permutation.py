"""Permutation: a secret permutation of coordinates, under one key.

The server adds up sparse updates and so sees each sender's coordinates. Permuted, they reveal their
number and the overlap between senders, but not their places in the model.

Below SMALL coordinates: a table, shuffled (Fisher-Yates) by uniform picks; every permutation is
equally likely. From there on: an alternating Feistel network over pairs (l, r) in Z_a x Z_b, with a
= ceil(sqrt n) and b = ceil(n / a). Coordinate d is the pair (d // b, d % b). Even rounds add T_i[r]
to l modulo a, odd ones T_i[l] to r modulo b. An image of n or more is permuted again until it falls
below n (cycle walking; fewer than one in b are). Only the coordinates in use cost anything, and a
round's table fits a core's first cache. The inverse is the same network with negated tables,
backwards.

All picks and table entries are exactly `uniform`: words of AES-256-CTR under the key, stream i for
table i and stream 0 for the shuffle. The counter block is fixed by the stream. This is safe because
a key makes one permutation only: sessions derive a fresh one for every round and attempt.

Security: the shuffle is as good as AES. The network is heuristic, like FF1: we know no attack that
distinguishes ROUNDS rounds of independent random functions (FF1 has 10) from a random permutation
here. Attacks on small-domain Feistel networks need many pairs of inputs and images. An observer
here sees only images of secret sets, once under each key. Sizes and overlaps of supports stay
visible under any permutation.

Source: FLASHE, Sec. 4.2; Black and Rogaway, 2002 (cycle walking, unbalanced halves); NIST SP
800-38G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, RangeError
from flhe.math.buffers import empty, fixed
from flhe.math.keystream import BLOCK, Stream
from flhe.wire.secret import Secret

SMALL = 1 << 16
"""Fewer coordinates than this are shuffled in a table."""

ROUNDS = 12

MAX_LENGTH = (1 << 31) - 1

Tables = tuple[NDArray[np.uint32], NDArray[np.uint32]]
"""Tables of the permutation, and of its inverse."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """A permutation of 0 to length - 1, below 2**31, under a 32-byte key for it alone."""

    key: bytes
    length: int
    _tables: Tables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != 32:
            raise ConfigError("Permutation: the key must be 32 bytes")
        if not 0 <= self.length <= MAX_LENGTH:
            raise ConfigError(
                f"Permutation(length={self.length}): the length must be 0 to {MAX_LENGTH}"
            )
        object.__setattr__(self, "key", Secret(self.key))
        make = _shuffled if self.length < SMALL else _network
        object.__setattr__(self, "_tables", make(self.key, self.length))

    def forward(self, coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return images of `coords`, uint32 (count,). RangeError for one beyond the length."""
        return self._map(coords, inverse=False)

    def inverse(self, coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the preimages of `coords`, shape (count,). RangeError for one beyond the length."""
        return self._map(coords, inverse=True)

    def _map(self, coords: NDArray[np.uint32], *, inverse: bool) -> NDArray[np.uint32]:
        # Checked here because the loops do not check: they would read beyond their tables.
        if coords.dtype != np.uint32:
            raise RangeError(f"Permutation: coordinates are uint32, got {coords.dtype}")
        if coords.size and int(coords.max()) >= self.length:
            raise RangeError(f"Permutation: a coordinate is not below {self.length}")
        table = self._tables[inverse]
        if self.length < SMALL:
            return table[coords]
        from flhe.math import coordinate_kernels

        rows, columns = _halves(self.length)
        out = empty(coords.size, np.uint32)
        coordinate_kernels.feistel(
            fixed(coords),
            np.uint32(self.length),
            np.uint32(rows),
            np.uint32(columns),
            table,
            inverse,
            out,
        )
        return out


def _halves(length: int) -> tuple[int, int]:
    rows = math.isqrt(length - 1) + 1
    return rows, -(-length // rows)


def _shuffled(key: bytes, length: int) -> Tables:
    """Return a uniformly random permutation and its inverse, both uint32 (length,)."""
    from flhe.math import coordinate_kernels

    forward = np.arange(length, dtype=np.uint32)
    picks = uniform(Stream(key, 0), np.arange(1, length + 1, dtype=np.uint32))
    coordinate_kernels.shuffle(picks, forward)
    inverse = np.empty_like(forward)
    inverse[forward] = np.arange(length, dtype=np.uint32)
    return forward, inverse


def _network(key: bytes, length: int) -> Tables:
    """Return the rounds' tables, and the inverse's, both uint32 (ROUNDS, max(a, b))."""
    rows, columns = _halves(length)
    forward = np.zeros((ROUNDS, max(rows, columns)), np.uint32)
    inverse = np.zeros_like(forward)
    for i in range(ROUNDS):
        entries, modulus = (columns, rows) if i % 2 == 0 else (rows, columns)
        table = uniform(Stream(key, i), np.full(entries, modulus, np.uint32))
        forward[i, :entries] = table
        inverse[ROUNDS - 1 - i, :entries] = np.where(table, np.uint32(modulus) - table, 0)
    return forward, inverse


def uniform(stream: Stream, bounds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return one exactly uniform integer below each of `bounds`, uint32, at most 2**16 of them.

    Each takes the stream's next 32-bit word, little-endian, modulo its bound. Words not below the
    bound's largest multiple are drawn again, after all the others, in order.
    """
    out, places = np.empty(bounds.size, np.uint32), np.arange(bounds.size)
    scratch: NDArray[Any] = np.empty(4 * bounds.size + BLOCK, np.uint8)
    todo: Any = slice(None)
    while (below := bounds[todo]).size:
        stream.into(scratch, 4 * below.size)
        words = scratch[: 4 * below.size].view(np.uint32)
        out[todo] = drawn = words % below
        # The bound's multiple at or below the word is at most 2**32 - bound, or it is drawn again.
        todo = places[todo][words - drawn > np.negative(below)]
    return out

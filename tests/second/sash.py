"""SASH, from messages to messages: products of polynomials by one product of large integers.

`tests.schemes.test_sash_vectors` has the sizes and the matrix form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.math.test_permutation_vectors import NEAR
from tests.math.test_shamir_vectors import Tape, drawn
from tests.schemes import eshe_second
from tests.schemes.test_sash_vectors import Q, Second, added, nearest
from tests.second.wire import Clear, Wire, header


def negacyclic(a: list[int], b: list[int], q: int) -> list[int]:
    """a b modulo x**n + 1 and q, for coefficients from 0 to q - 1: Kronecker's substitution."""
    n, width = len(a), 2 * q.bit_length() + len(a).bit_length()
    nbytes = (width + 7) // 8

    def joined(f: list[int]) -> int:
        return int.from_bytes(b"".join(x.to_bytes(nbytes, "little") for x in f), "little")

    whole = (joined(a) * joined(b)).to_bytes(2 * n * nbytes, "little")
    c = [int.from_bytes(whole[nbytes * i : nbytes * (i + 1)], "little") for i in range(2 * n)]
    return [(c[d] - c[d + n]) % q for d in range(n)]


@functools.lru_cache(maxsize=16)
def polynomial(key: bytes, j: int, n: int) -> list[int]:
    """a of block j: drawn as its values."""
    return eshe_second.uniform(key, j, n, Q)


@dataclass(frozen=True)
class SashBook:
    """SASH; it keeps the seeds of what it sealed or was told of.

    Parameters
    ----------
    cohort, bits, preset
        As for `Sash`.
    tapes : dict of int to bytes
        Rank -> what its random source gives.
    slot : dict
        The round.
    """

    cohort: int
    bits: int
    preset: str
    tapes: dict[int, bytes] = field(default_factory=dict)
    slot: Any = None

    @property
    def second(self) -> Second:
        return Second(self.cohort, self.bits, self.preset, slot=self.slot)

    def seed(self, rank: int) -> list[int]:
        """k of a sender."""
        return drawn(Tape(self.tapes[rank]), self.second.mu)

    def mask(self, seed: list[int], length: int) -> list[int]:
        """G(seed)."""
        second, mu = self.second, self.second.mu
        if not self.preset.startswith("ring"):
            return second.mask(seed, length)
        key = second.public()
        blocks = (negacyclic(polynomial(key, j, mu), seed, Q) for j in range(-(-length // mu)))
        return [nearest(x) for block in blocks for x in block][:length]

    def header(self, wire: Wire) -> bytes:
        return header("sash", "", self.slot or NEAR, wire)

    def seal(self, rank: int, clear: Clear) -> Wire:
        masks = self.mask(self.seed(rank), len(clear.lanes))
        step = 2**self.second.guard
        lanes = [(step * x + m) % 2**32 for x, m in zip(clear.lanes, masks, strict=True)]
        return self._wire((rank,), lanes)

    def add(self, parts: Sequence[Wire]) -> Wire:
        senders = sorted(s for part in parts for s in part.senders)
        return self._wire(tuple(senders), added([self._lanes(part) for part in parts]))

    def open(self, wire: Wire) -> list[int]:
        masks = self.mask(added([self.seed(s) for s in wire.senders], Q), wire.length)
        step, out = 2**self.second.guard, []
        for y, m in zip(self._lanes(wire), masks, strict=True):
            left = (y - m + 2**31) % 2**32 - 2**31
            value = (left + step // 2) // step
            if 2 * abs(left - step * value) > len(wire.senders) + 1:
                raise ValueError("another key")
            out.append(value)
        return out

    def _lanes(self, wire: Wire) -> list[int]:
        return [int.from_bytes(wire.data[4 * i :][:4], "little") for i in range(wire.length)]

    def _wire(self, senders: tuple[int, ...], lanes: list[int]) -> Wire:
        return Wire(senders, len(lanes), b"".join(x.to_bytes(4, "little") for x in lanes))

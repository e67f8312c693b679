"""SASH, a second time: Python's integers; a mask is a list of rounded products modulo q.

A sum of seeds opens a sum of vectors, by division with the least remainder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.reference.field import Q, from_source, nearest, product, uniform
from tests.reference.wire import (
    Book,
    Clear,
    Tape,
    Wire,
    cbor,
    columns,
    context,
    hashed,
    little,
    little_read,
    senders_of,
)

PRESETS = {"ring-2048": 2048}
"""Name -> mu."""


@dataclass(frozen=True, kw_only=True)
class SashBook(Book):
    """SASH; tapes are what the random source of each rank gives."""

    name = "sash"

    preset: str = "ring-2048"
    tapes: dict[int, bytes] = field(default_factory=dict)

    @property
    def mu(self) -> int:
        return PRESETS[self.preset]

    @property
    def guard(self) -> int:
        """g: room for the error of the sum, and a hundredth of the residues that no sum has."""
        residues = 2 * ((self.cohort + 1) // 2) + 1
        return next(
            g for g in range(1, 33) if 2**g >= self.cohort + 2 and 100 * residues <= 99 * 2**g
        )

    def public(self) -> bytes:
        """The key of what is drawn in public."""
        run_id, roster_hash, epoch, *_ = context(self.slot)
        fields = ["flhe/v1/sash-a", self.preset, run_id, roster_hash, epoch]
        return hashlib.sha256(cbor(fields)).digest()

    def seed(self, rank: int) -> list[int]:
        """k of a sender."""
        return from_source(Tape(self.tapes[rank]), self.mu)

    def mask(self, seed: list[int], length: int) -> list[int]:
        """G(seed)."""
        key, mu = self.public(), self.mu
        blocks = (product(uniform(key, j, mu), seed, Q) for j in range(-(-length // mu)))
        return [nearest(x) for block in blocks for x in block][:length]

    def unmask(self, wire: Wire, seed: list[int]) -> tuple[list[int], list[int]]:
        """The sum, and what the homomorphism added to it; ValueError where that is too much."""
        values, errors, step = [], [], 2**self.guard
        masks = self.mask(seed, wire.length)
        for y, m in zip(little_read(wire.data, 4), masks, strict=True):
            left = (y - m + 2**31) % 2**32 - 2**31
            values.append((left + step // 2) // step)
            errors.append(left - step * values[-1])
        if any(2 * abs(e) > len(wire.senders) + 1 for e in errors):
            raise ValueError("another key")
        return values, errors

    def about(self, length: int) -> dict[str, Any]:
        return {"guard": self.guard, "public": self.public().hex()}

    def of_part(self, rank: int, ranks: Sequence[int]) -> dict[str, Any]:
        return {"seed": hashed(little(self.seed(rank)))}

    def of_sum(self, wire: Wire, long: bool) -> dict[str, Any]:
        seed = self._total(wire)
        _, off = self.unmask(wire, seed)
        counts = {str(e): off.count(e) for e in sorted(set(off))}
        return {"seed": hashed(little(seed)), "off_by": counts if long else off}

    def seal(self, rank: int, clear: Clear) -> Wire:
        masks = self.mask(self.seed(rank), len(clear.lanes))
        step = 2**self.guard
        lanes = [step * x + m for x, m in zip(clear.lanes, masks, strict=True)]
        return Wire((rank,), len(lanes), little(lanes, 4))

    def add(self, parts: Sequence[Wire]) -> Wire:
        lanes = columns([little_read(part.data, 4) for part in parts])
        return Wire(senders_of(parts), len(lanes), little(lanes, 4))

    def open(self, wire: Wire) -> list[int]:
        return self.unmask(wire, self._total(wire))[0]

    def _total(self, wire: Wire) -> list[int]:
        return columns([self.seed(s) for s in wire.senders], Q)

"""ESHE, from messages to messages: `tests.schemes.eshe_second` has the ring, its samples and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.math.test_permutation_vectors import NEAR
from tests.schemes.eshe_second import (
    GOLDILOCKS,
    Rows,
    Second,
    added,
    key_of,
    noise_seed,
    own,
)
from tests.second.wire import Clear, Wire, header, residues_in


@dataclass(frozen=True)
class EsheBook:
    """ESHE, whose keys and errors are those of `eshe_second`'s seeds by rank.

    Parameters
    ----------
    cohort, bits, ring
        As for `Eshe`.
    keys : str
        "joint" or "round".
    slot : dict
        The round.
    """

    cohort: int
    bits: int
    ring: str
    keys: str
    slot: Any = None

    @property
    def second(self) -> Second:
        return Second(self.cohort, self.bits, self.ring, self.keys, self.slot)

    def header(self, wire: Wire) -> bytes:
        return header("esafl", "", self.slot or NEAR, wire)

    def seal(self, rank: int, clear: Clear) -> Wire:
        second = self.second
        rows = second.encrypt(own(rank, second.n), noise_seed(rank), clear.lanes)
        return Wire((rank,), len(clear.lanes), second.wire(rows))

    def add(self, parts: Sequence[Wire]) -> Wire:
        senders = sorted(s for part in parts for s in part.senders)
        total = added(self.second, [self._rows(part) for part in parts])
        return Wire(tuple(senders), parts[0].length, self.second.wire(total))

    def open(self, wire: Wire) -> list[int]:
        rows = self._rows(wire)
        if any(x >= q for row, q in zip(rows, self.second.moduli, strict=True) for x in row):
            raise ValueError("a residue that is none")
        key = key_of(wire.senders, self.second.n)
        values, _ = self.second.open(rows, key, len(wire.senders), wire.length)
        return values

    def _rows(self, wire: Wire) -> Rows:
        """Residues, limb by limb."""
        second, count = self.second, self.second.count(wire.length)
        bits = 64 if self.ring == GOLDILOCKS else second.sizes[1]
        size = (count * bits + 7) // 8
        limbs = range(0, size * len(second.moduli), size) if size else [0] * len(second.moduli)
        return [residues_in(wire.data[at : at + size], count, bits) for at in limbs]

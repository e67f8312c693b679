"""FLASHE, from messages to messages: `tests.schemes.test_flashe_sparse_vectors` has the masks.

A vector is a dictionary from places to numbers; a dense one has all places, and no support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.coding.test_support_vectors import characters, coded, rice_read
from tests.math.test_permutation_vectors import NEAR
from tests.schemes.test_flashe_sparse_vectors import Second, Vector
from tests.second.wire import Clear, Wire, header, residues_in


def coordinates(support: bytes) -> list[int]:
    """The set that a support is the code of."""
    bits = characters(support[5:])
    if support[0] == 0:
        return [d for d, bit in enumerate(bits) if bit == "1"]
    found = rice_read(bits, support[0] - 1, int.from_bytes(support[1:5], "big"))
    assert found is not None
    return found


@dataclass(frozen=True)
class FlasheBook:
    """FLASHE, dense or sparse.

    Parameters
    ----------
    cohort, bits, masking, mode
        As for `tests.schemes.test_flashe_sparse_vectors.Second`.
    floats : int
        Coordinates of the layout.
    sparse : bool
        Whether senders choose coordinates.
    slot : dict
        The round.
    """

    cohort: int
    bits: int
    masking: str
    mode: str
    floats: int
    sparse: bool
    slot: Any = None

    @property
    def second(self) -> Second:
        return Second(self.cohort, self.bits, self.masking, self.mode, self.floats, self.slot)

    def header(self, wire: Wire) -> bytes:
        return header("flashe", self.mode, self.slot or NEAR, wire, self.floats)

    def seal(self, rank: int, clear: Clear) -> Wire:
        coords = range(self.floats) if clear.coords is None else clear.coords
        behind = range(self.floats, self.floats + len(clear.extras))
        plain = dict(zip([*coords, *behind], clear.lanes, strict=True))
        supports = () if clear.coords is None else (coded(clear.coords, self.floats),)
        return self._wire((rank,), self.second.encrypt(rank, plain), supports)

    def add(self, parts: Sequence[Wire]) -> Wire:
        total: Vector = {}
        for part in parts:
            for place, number in self._vector(part).items():
                total[place] = (total.get(place, 0) + number) % 2**self.second.b
        supports = {s: d for p in parts for s, d in zip(p.senders, p.supports, strict=False)}
        senders = sorted(s for part in parts for s in part.senders)
        return self._wire(tuple(senders), total, tuple(supports[s] for s in sorted(supports)))

    def open(self, wire: Wire) -> list[int]:
        total, half = self._vector(wire), 2 ** (self.second.b - 1)
        for i, rank in enumerate(wire.senders):
            places = self._places(wire, wire.supports[i : i + 1])
            for place, mask in self.second.masks(rank, places).items():
                total[place] -= mask
        return [(total[place] + half) % (2 * half) - half for place in sorted(total)]

    def _places(self, wire: Wire, supports: Sequence[bytes]) -> list[int]:
        """Coordinates of these supports, and those of the extras."""
        if not wire.supports:
            return list(range(wire.length))
        union = {d for data in wire.supports for d in coordinates(data)}
        some = {d for data in supports for d in coordinates(data)}
        behind = range(self.floats, self.floats + wire.length - len(union))
        return [*sorted(some), *behind]

    def _vector(self, wire: Wire) -> Vector:
        lanes = residues_in(wire.data, wire.length, self.second.b)
        return dict(zip(self._places(wire, wire.supports), lanes, strict=True))

    def _wire(self, senders: tuple[int, ...], vector: Vector, supports: tuple[bytes, ...]) -> Wire:
        return Wire(senders, len(vector), self.second.pack(vector), supports)

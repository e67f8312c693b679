"""FLASHE, a second time: every mask by itself, sums by dictionaries.

A vector is a dictionary from places to numbers: coordinate d is place d, extra e is place `floats` + e,
and a mask belongs to a sender and a place. A dense vector has all places, and no support. Opening
takes the masks of each sender one by one: nothing telescopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference.support import coded, coordinates, digest
from tests.reference.wire import (
    Book,
    Clear,
    Wire,
    block,
    hashed,
    little,
    packed,
    senders_of,
    unpacked,
)

GROUP_KEY = bytes(range(100, 132))

Vector = dict[int, int]
"""Numbers by their places."""


@dataclass(frozen=True, kw_only=True)
class FlasheBook(Book):
    """FLASHE, dense or sparse, on a layout of `floats` coordinates; `mode` is what is announced."""

    name = "flashe"

    masking: str = "double"
    mode: str = ""
    floats: int = 0
    key: bytes = GROUP_KEY

    @property
    def b(self) -> int:
        """Bits of a lane."""
        return self.bits + next(more for more in range(11) if 2**more >= self.cohort)

    def round_key(self) -> bytes:
        return self.derived(self.key, "flashe", self.mode or self.masking, self.b)

    def masks(self, j: int, places: Sequence[int]) -> Vector:
        key, width, n = self.round_key(), 4 if self.b <= 32 else 8, 1 << self.b

        def f(stream: int, place: int) -> int:
            number, at = divmod(place * width, 16)
            return int.from_bytes(block(key, stream, number)[at : at + width], "little") % n

        if (self.mode or self.masking) == "single":
            return {place: f(j, place) for place in places}
        return {place: (f(j, place) - f(j + 1, place)) % n for place in places}

    def about(self, length: int) -> dict[str, Any]:
        return {"lane_bits": self.b, "round_key": self.round_key().hex()}

    def of_sum(self, wire: Wire, long: bool) -> dict[str, Any]:
        sets = [set(coordinates(support)) for support in wire.supports]
        union = sorted(set().union(*sets))
        counts = [sum(d in one for one in sets) for d in union]
        return {"coords": self.listed(union, long), "counts": self.listed(counts, long)}

    def listed(self, values: list[int], long: bool) -> Any:
        return hashed(little(values)) if long else values

    def header(self, wire: Wire, mode: str = "", told: Sequence[Any] = ()) -> bytes:
        told = [[self.floats, len(data), digest(data, self.floats)] for data in wire.supports]
        return super().header(wire, self.mode, told)

    def seal(self, rank: int, clear: Clear) -> Wire:
        coords = range(len(clear.values)) if clear.coords is None else clear.coords
        floats = len(clear.values) if clear.coords is None else self.floats
        places = [*coords, *range(floats, floats + len(clear.extras))]
        masks = self.masks(rank, places)
        sealed = {p: x + masks[p] for p, x in zip(places, clear.lanes, strict=True)}
        supports = () if clear.coords is None else (coded(clear.coords, self.floats),)
        return self._wire((rank,), sealed, supports)

    def add(self, parts: Sequence[Wire]) -> Wire:
        total: Vector = {}
        for part in parts:
            for place, number in self._vector(part).items():
                total[place] = total.get(place, 0) + number
        supports = {s: d for p in parts for s, d in zip(p.senders, p.supports, strict=False)}
        return self._wire(senders_of(parts), total, tuple(supports[s] for s in sorted(supports)))

    def open(self, wire: Wire) -> list[int]:
        total, half = self._vector(wire), 2 ** (self.b - 1)
        for i, rank in enumerate(wire.senders):
            places = self._places(wire, wire.supports[i : i + 1])
            for place, mask in self.masks(rank, places).items():
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
        lanes = unpacked(wire.data, wire.length, self.b)
        return dict(zip(self._places(wire, wire.supports), lanes, strict=True))

    def _wire(self, senders: tuple[int, ...], vector: Vector, supports: tuple[bytes, ...]) -> Wire:
        lanes = [vector[place] for place in sorted(vector)]
        return Wire(senders, len(vector), packed(lanes, self.b), supports)

"""ESAFL, a second time: Python's integers.

Products are those of whole numbers. Residues come together again by the Chinese remainder theorem.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.reference.field import Q, drawn_again, elements, primes, product, uniform
from tests.reference.gaussian import gaussian
from tests.reference.wire import (
    Book,
    Clear,
    Wire,
    cbor,
    columns,
    hashed,
    little,
    packed,
    senders_of,
    unpacked,
)

GOLDILOCKS = "goldilocks-4096"
Rows = list[list[int]]
"""Residues, limb by limb."""


def key_seed(rank: int) -> bytes:
    return hashlib.sha256(f"eshe key {rank}".encode()).digest()


def noise_seed(rank: int) -> bytes:
    return hashlib.sha256(f"eshe noise {rank}".encode()).digest()


def own(rank: int, n: int) -> list[int]:
    """A sender's key."""
    return gaussian(key_seed(rank), n)


def key_of(ranks: Iterable[int], n: int) -> list[int]:
    """The sum of their keys."""
    return columns([own(rank, n) for rank in ranks])


@dataclass(frozen=True, kw_only=True)
class EsaflBook(Book):
    """ESAFL, whose keys and errors are those of seeds by rank.

    Parameters
    ----------
    n, per, limbs, limb_bits : int
        Dimension, slots of a coefficient, moduli and bits of a residue, as the library has found them.
    """

    name = "esafl"

    n: int
    per: int
    limbs: int
    limb_bits: int
    ring: str = GOLDILOCKS
    keys: str = "joint"
    group_key: bytes = field(default=hashlib.sha256(b"eshe 396700").digest())
    """The first of its kind under which a word of NEAR's first Goldilocks block is drawn again."""

    @property
    def b(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def width(self) -> int:
        return (2 * self.b * self.cohort).bit_length()

    @functools.cached_property
    def moduli(self) -> list[int]:
        return [Q] if self.limb_bits == 64 else primes(self.n, self.limb_bits, self.limbs)

    @property
    def p(self) -> int:
        return 1 << (self.per * self.width)

    def count(self, length: int) -> int:
        """Coefficients for so many values."""
        return -(-length // self.per)

    def a_key(self, limb: int) -> bytes:
        return self.derived(self.group_key, "eshe-a", self.ring, limb)

    def products(self, s: list[int], count: int) -> Rows:
        """The first coefficients of a s, block after block: the last block is cut."""
        rows: Rows = []
        for limb, q in enumerate(self.moduli):
            key, own = self.a_key(limb), [x % q for x in s]
            drawn = (uniform(key, j, self.n, q) for j in range(-(-count // self.n)))
            rows.append([x for a in drawn for x in product(a, own, q)][:count])
        return rows

    def noise_bound(self, senders: int) -> int:
        """8 sigma sqrt(N), rounded up, or all at 40."""
        square = (8 * 453) ** 2 * senders
        return min(40 * senders, next(k for k in itertools.count() if (100 * k) ** 2 >= square))

    def unmask(self, wire: Wire, s: list[int]) -> tuple[list[int], list[int]]:
        """Sums of values, and of noise; ValueError says what is wrong."""
        q, senders = math.prod(self.moduli), len(wire.senders)
        rows, products = self._rows(wire), self.products(s, self.count(wire.length))
        if any(x >= m for row, m in zip(rows, self.moduli, strict=True) for x in row):
            raise ValueError("a residue is not below its modulus")
        pairs = zip(rows, products, strict=True)
        left = [[x - y for x, y in zip(*pair, strict=True)] for pair in pairs]
        parts = [(q // m) * pow(q // m, -1, m) for m in self.moduli]
        noise, slots = [], []
        for column in zip(*left, strict=True):
            x = sum(r * part for r, part in zip(column, parts, strict=True)) % q
            e, m = divmod(x - q if 2 * x > q else x, self.p)
            noise.append(e)
            slots += [m >> (self.width * k) & (2**self.width - 1) for k in range(self.per)]
        if any(abs(e) > self.noise_bound(senders) for e in noise):
            raise ValueError("noise beyond")
        if any(u > 2 * self.b * senders for u in slots):
            raise ValueError("a slot beyond what")
        if any(slots[wire.length :]):
            raise ValueError("the last value is not the end")
        return [u - senders * self.b for u in slots[: wire.length]], noise

    def elements(self, s: list[int]) -> list[int]:
        """A key as field elements: digits that have room for the sum of all."""
        bits = (40 * self.cohort).bit_length() + 1
        per = 63 // bits
        runs = [s[at : at + per] for at in range(0, len(s), per)]
        return [sum(x * 2 ** (bits * k) for k, x in enumerate(run)) % Q for run in runs]

    def about(self, length: int) -> dict[str, Any]:
        blocks = [
            (self.a_key(limb), j, self.n, q)
            for limb, q in enumerate(self.moduli)
            for j in range(-(-self.count(length) // self.n))
        ]
        return {
            "width": self.width,
            "slots": self.per,
            "limb_bits": self.limb_bits,
            "moduli": [f"{q:x}" for q in self.moduli],
            "a": [
                {
                    "key": block[0].hex(),
                    "block": block[1],
                    "drawn_again": drawn_again(*block),
                    "values": hashed(little(elements(*block))),
                }
                for block in blocks
            ],
        }

    def of_part(self, rank: int, ranks: Sequence[int]) -> dict[str, Any]:
        s = own(rank, self.n)
        file = [1, "eshe-key", little(s, 1), little(key_of(ranks, self.n), 4)]
        told = {"key_seed": key_seed(rank).hex(), "noise_seed": noise_seed(rank).hex()}
        told |= {"own": hashed(little(s, 1)), "elements": hashed(little(self.elements(s)))}
        return told | {"file": hashed(cbor(file))}

    def of_sum(self, wire: Wire, long: bool) -> dict[str, Any]:
        s = key_of(wire.senders, self.n)
        _, noise = self.unmask(wire, s)
        bound = self.noise_bound(len(wire.senders))
        told = {"noise_bound": bound, "noise": self.listed(noise, long)}
        return told | {"key": hashed(little(s, 4))}

    def seal(self, rank: int, clear: Clear) -> Wire:
        plain, count = clear.lanes, self.count(len(clear.lanes))
        e, m = gaussian(noise_seed(rank), count), [0] * count
        for i, v in enumerate(plain):
            m[i // self.per] += (v + self.b) << (self.width * (i % self.per))
        rows = [
            [(x + self.p * e[d] + m[d]) % q for d, x in enumerate(row)]
            for row, q in zip(self.products(own(rank, self.n), count), self.moduli, strict=True)
        ]
        return self._wire((rank,), len(plain), rows)

    def add(self, parts: Sequence[Wire]) -> Wire:
        limbs = zip(*(self._rows(part) for part in parts), strict=True)
        total = [columns(rows, q) for rows, q in zip(limbs, self.moduli, strict=True)]
        return self._wire(senders_of(parts), parts[0].length, total)

    def open(self, wire: Wire) -> list[int]:
        return self.unmask(wire, key_of(wire.senders, self.n))[0]

    def _rows(self, wire: Wire) -> Rows:
        count, bits = self.count(wire.length), self.limb_bits
        size = (count * bits + 7) // 8
        starts = [size * limb for limb in range(len(self.moduli))]
        return [unpacked(wire.data[at : at + size], count, bits) for at in starts]

    def _wire(self, senders: tuple[int, ...], length: int, rows: Rows) -> Wire:
        return Wire(senders, length, b"".join(packed(row, self.limb_bits) for row in rows))

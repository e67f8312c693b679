"""FedML-HE's CKKS, a second time: transforms, slots and masks by definition.

It knows nothing of TenSEAL or SEAL either. A ciphertext is the transform of m + e - a s: values at odd
powers of psi, the least primitive 2 n-th root of unity, exponents in bit-reversed order. Slots are sums
of cosines in extended precision: what is rounded to integers in the end is far from a tie. TenSEAL
draws its own randomness, so the two implementations agree on sums and never on ciphertexts.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.field import elements, least_root, ordered, polynomial_of, primes, values_of
from tests.reference.wire import Book, Clear, Wire, columns, packed, senders_of, unpacked

GROUP_KEY = bytes(range(60, 92))

Reals = NDArray[np.longdouble]


def transform(a: list[int], q: int) -> list[int]:
    return ordered(values_of(a, least_root(len(a), q), q))


def inverse(values: list[int], q: int) -> list[int]:
    return polynomial_of(ordered(values), least_root(len(values), q), q)


@functools.lru_cache(maxsize=8)
def cosines(n: int, count: int) -> Reals:
    """Row j: real parts of the powers of slot j's root, (count, n)."""
    exponents = np.array([[pow(3, j, 2 * n) * k % (2 * n) for k in range(n)] for j in range(count)])
    found: Reals = np.cos(exponents * (np.arctan2(np.longdouble(0), np.longdouble(-1)) / n))
    return found


def ternary(salt: int, n: int) -> tuple[int, ...]:
    """A secret key."""
    return tuple(x % 3 - 1 for x in hashlib.shake_256(b"key %d" % salt).digest(n))


def unpacked_key(data: bytes, n: int) -> tuple[int, ...]:
    """As it stands in a file: five coefficients a byte."""
    return tuple(x // 3**k % 3 - 1 for x in data for k in range(5))[:n]


@functools.lru_cache(maxsize=64)
def errors(rank: int, block: int, n: int) -> list[int]:
    """Of 21 bits each way: centred binomial."""
    told = b"error %d" % rank + (b" %d" % block if block else b"")
    digest = hashlib.shake_256(told).digest(6 * n)
    words = [int.from_bytes(digest[i : i + 6], "little") for i in range(0, 6 * n, 6)]
    half = (1 << 21) - 1
    return [(w & half).bit_count() - (w >> 21 & half).bit_count() for w in words]


@functools.lru_cache(maxsize=8)
def _transformed(key: tuple[int, ...], q: int) -> list[int]:
    return transform([x % q for x in key], q)


@dataclass(frozen=True, kw_only=True)
class FedmlHeBook(Book):
    """CKKS.

    Parameters
    ----------
    n, q_bits, per, scale_bits : int
        Dimension, bits of the modulus, values in a slot, logarithm of the scale: `FedmlHe.sizes` proves
        that there is room for the noise, which is no matter of arithmetic.
    key : tuple of int
        The secret key's coefficients.
    """

    name = "fedml-he"

    n: int
    q_bits: int
    per: int
    scale_bits: int
    key: tuple[int, ...]

    @property
    def q(self) -> int:
        return primes(self.n, self.q_bits, 1)[0]

    @property
    def width(self) -> int:
        largest: int = self.cohort * (2**self.bits - 2)
        return largest.bit_length()

    @property
    def block(self) -> int:
        """Values in one polynomial."""
        return self.n // 2 * self.per

    def about(self, length: int) -> dict[str, Any]:
        told = {"slot_bits": self.width, "slots": self.per, "scale_bits": self.scale_bits}
        return {"modulus": f"{self.q:x}", **told}

    def seal(self, rank: int, clear: Clear) -> Wire:
        lanes, residues, q = clear.lanes, [], self.q
        for b, at in enumerate(range(0, len(lanes), self.block)):
            slots = self._joined(lanes[at : at + self.block])
            real = np.array(slots, np.longdouble) @ cosines(self.n, len(slots))
            m = np.rint(real * (np.longdouble(2) ** (self.scale_bits + 1) / self.n))
            noisy = [int(x) + e for x, e in zip(m, errors(rank, b, self.n), strict=True)]
            values = transform([x % q for x in noisy], q)
            residues += self._less(values, (rank,), b, -1)
        return self._wire((rank,), len(lanes), residues)

    def add(self, parts: Sequence[Wire]) -> Wire:
        total = columns([self._residues(part) for part in parts], self.q)
        return self._wire(senders_of(parts), parts[0].length, total)

    def open(self, wire: Wire) -> list[int]:
        residues, q, out = self._residues(wire), self.q, []
        if any(x >= q for x in residues):
            raise ValueError("a residue that is none")
        for b in range(len(residues) // self.n):
            values = residues[b * self.n : (b + 1) * self.n]
            m = inverse(self._less(values, wire.senders, b, 1), q)
            centred = np.array([x - q if 2 * x > q else x for x in m], np.longdouble)
            count = min(-(-(wire.length - b * self.block) // self.per), self.n // 2)
            slots = cosines(self.n, count) @ centred / np.longdouble(2) ** self.scale_bits
            whole = np.rint(slots)
            if np.abs(slots - whole).max() >= 0.25:
                raise ValueError("a slot lies off the grid")
            for slot in whole:
                out += self._digits(int(slot))
        most = len(wire.senders) * (2 ** (self.bits - 1) - 1)
        if any(abs(x) > most for x in out):
            raise ValueError("a sum that its senders do not reach")
        if any(out[wire.length :]):
            raise ValueError("a value after the last one")
        return out[: wire.length]

    def _less(self, values: list[int], senders: Sequence[int], block: int, sign: int) -> list[int]:
        """Values of a block with sign a s added, a being the sum of the senders' masks."""
        q, n, s = self.q, self.n, _transformed(self.key, self.q)
        rows = [(self._mask(j, block), self._mask(j + 1, block)) for j in senders]
        a = [sum(p[i] - m[i] for p, m in rows) for i in range(n)]
        return [(x + sign * y * z) % q for x, y, z in zip(values, a, s, strict=True)]

    def _mask(self, j: int, block: int) -> list[int]:
        key = self.derived(GROUP_KEY, "ckks-a", j, self.n, self.q)
        return elements(key, block, self.n, self.q)

    def _joined(self, values: list[int]) -> list[int]:
        rows = [values[i : i + self.per] for i in range(0, len(values), self.per)]
        return [sum(v << (self.width * k) for k, v in enumerate(row)) for row in rows]

    def _digits(self, slot: int) -> list[int]:
        out, half = [], 1 << (self.width - 1)
        for _ in range(self.per - 1):
            out.append((slot + half) % (2 * half) - half)
            slot = (slot - out[-1]) >> self.width
        return [*out, slot]

    def _residues(self, wire: Wire) -> list[int]:
        return unpacked(wire.data, -(-wire.length // self.block) * self.n, self.q_bits)

    def _wire(self, senders: tuple[int, ...], length: int, residues: list[int]) -> Wire:
        return Wire(senders, length, packed(residues, self.q_bits))

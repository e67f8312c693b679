"""BatchCrypt, a second time: textbook powers modulo n^2, decryption by lambda.

An exponent is what a random source gave, little-endian; a ciphertext is (1 + m n) h^(n a) modulo n^2,
a sum their product.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gmpy2

from tests.reference.wire import Book, Clear, Wire, cbor, little, little_read, senders_of

KEY_BYTES = 256


def power(base: int, exponent: int, modulus: int) -> int:
    """Python's pow(), by GMP: ten times faster."""
    return int(gmpy2.powmod(base, exponent, modulus))


class Pair:
    """A key of 2048 bits: primes that are 3 modulo 4."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)  # a published test vector is no secret
        self.p, self.q = (self._prime(rng) for _ in range(2))
        self.n = self.p * self.q
        self.square = self.n**2
        hashed = cbor(["flhe/v1/paillier-base", self.n.to_bytes(256, "big")])
        x = int.from_bytes(hashlib.shake_256(hashed).digest(272), "big")
        self.h = self.n - x**2 % self.n
        self.power = power(self.h, self.n, self.square)
        self.order = math.lcm(self.p - 1, self.q - 1)

    @staticmethod
    def _prime(rng: random.Random) -> int:
        while True:
            x = rng.getrandbits(1024) | 3 << 1022 | 3
            if gmpy2.is_prime(x):
                return x

    def encrypt(self, message: int, exponent: int) -> int:
        hidden = power(self.power, exponent, self.square)
        return (1 + message % self.n * self.n) * hidden % self.square

    def decrypt(self, ciphertext: int) -> int:
        found = (power(ciphertext, self.order, self.square) - 1) // self.n
        message = found * pow(self.order, -1, self.n) % self.n
        return message - self.n if 2 * message > self.n else message


@functools.cache
def pair() -> Pair:
    """The key of the vectors."""
    return Pair(20)


@dataclass(frozen=True, kw_only=True)
class BatchCryptBook(Book):
    """BatchCrypt under the vectors' key; tapes are what the random source of each rank gives."""

    name = "batchcrypt"

    tapes: dict[int, bytes] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Bits of a slot."""
        largest: int = self.cohort * (2 ** (self.bits - 1) - 1)
        return largest.bit_length() + 2

    @property
    def per(self) -> int:
        """Slots of a batch."""
        return 2047 // self.width

    def layout(self, length: int) -> list[tuple[int, int]]:
        """Where each batch begins and ends."""
        return [(i, min(i + self.per, length)) for i in range(0, length, self.per)]

    def messages(self, values: Sequence[int]) -> list[int]:
        """Signed slots of one client's batches."""
        return [
            sum(v * 2 ** (self.width * k) for k, v in enumerate(values[start:stop]))
            for start, stop in self.layout(len(values))
        ]

    def about(self, length: int) -> dict[str, Any]:
        return {"slot_bits": self.width, "slots": self.per}

    def seal(self, rank: int, clear: Clear) -> Wire:
        made = self.messages(clear.lanes)
        drawn = little_read(self.tapes[rank][: 128 * len(made)], 128)  # half of |n| each
        numbers = [pair().encrypt(m, a) for m, a in zip(made, drawn, strict=True)]
        return self._wire((rank,), len(clear.lanes), numbers)

    def add(self, parts: Sequence[Wire]) -> Wire:
        rows = zip(*map(self._numbers, parts), strict=True)
        products = [math.prod(row) % pair().square for row in rows]
        return self._wire(senders_of(parts), parts[0].length, products)

    def open(self, wire: Wire) -> list[int]:
        out, width = [], self.width
        for c, (start, stop) in zip(self._numbers(wire), self.layout(wire.length), strict=True):
            if not 0 < c < pair().square or math.gcd(c, pair().n) > 1:
                raise ValueError("no ciphertext")
            rest, values = pair().decrypt(c), []
            for _ in range(self.per):
                values.append((rest + 2 ** (width - 1)) % 2**width - 2 ** (width - 1))
                rest = (rest - values[-1]) >> width
            if rest:
                raise ValueError("beyond all slots")
            if any(values[stop - start :]):
                raise ValueError("slots after the last value are not empty")
            out += values[: stop - start]
        if any(abs(v) > len(wire.senders) * (2 ** (self.bits - 1) - 1) for v in out):
            raise ValueError("a sum that its senders do not reach")
        return out

    def _numbers(self, wire: Wire) -> list[int]:
        if len(wire.data) != 2 * KEY_BYTES * len(self.layout(wire.length)):
            raise ValueError("bytes of another length")
        return little_read(wire.data, 2 * KEY_BYTES)

    def _wire(self, senders: tuple[int, ...], length: int, numbers: list[int]) -> Wire:
        return Wire(senders, length, little(numbers, 2 * KEY_BYTES))

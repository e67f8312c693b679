"""Ways to encrypt and decrypt under Paillier, from the print to what flhe does.

`flhe.sim.paillier_tricks` says what each of them is, and times them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flhe.coding.base import Plain
from flhe.errors import ConfigError, FlheError
from flhe.math.bigint import Big, from_rows, gmpy
from flhe.math.crt import Crt, Join
from flhe.math.residues import draw, exponent_bits, window
from flhe.schemes.paillier import DEFAULT_KEY_BITS, Paillier, PaillierSealer
from flhe.schemes.paillier_keys import SecretKey
from flhe.sealed import Slot
from flhe.sim.fixed_base import FixedBase
from flhe.sim.phe_peer import library

Group = Literal["encrypt", "decrypt"]

COHORT = 9
YARDSTICK = "phe"


@dataclass(frozen=True, slots=True)
class Trick:
    """One way to do it.

    Parameters
    ----------
    name : str
        Name of the row.
    group : "encrypt" or "decrypt"
        What it does.
    count : int
        Ciphertexts in one turn.
    work : callable
        Gives `count` ciphertexts, or decrypts as many; what it gives is checked.
    threads : int
        Processors that it has.
    before : callable, optional
        What precedes each turn and is not timed.
    """

    name: str
    group: Group
    count: int
    work: Callable[[], Sequence[Big]]
    threads: int = 1
    before: Callable[[], object] | None = None


class Tricks:
    """All of them, under one key.

    Parameters
    ----------
    key_bits : int
        |n|.
    count : int
        Ciphertexts that share tables.
    """

    def __init__(self, key_bits: int = DEFAULT_KEY_BITS, count: int = 2048) -> None:
        if count < 1:
            raise ConfigError(f"--count {count}: must be at least 1")
        mpz = gmpy().mpz
        self.key = SecretKey.generate(key_bits)
        self.count = count
        self.p, self.q = mpz(self.key.p), mpz(self.key.q)
        self.n = self.p * self.q
        self.width = window(self.n, count)
        self._square = self.n * self.n
        self._join = Join(self.p**2, self.q**2)
        slots = self._scheme().batch
        # A vector whose batches are all one plaintext, and this plaintext.
        part = np.arange(slots.per, dtype=np.int32) * 7 % 1001 - 500
        self._values = np.tile(part, count)
        self.message = slots.pack(part)[0] % self.n
        self.ciphertext = self._sealed(self._textbook())
        public = library().PaillierPublicKey(int(self.n))
        self._phe = public, library().PaillierPrivateKey(public, self.key.p, self.key.q)
        self._ready: PaillierSealer | None = None

    def all(self) -> list[Trick]:
        """Yardstick first, then from the print to what flhe does."""
        return [*self._encrypting(), *self._decrypting()]

    def check(self, trick: Trick, found: Sequence[Big]) -> None:
        """Raise FlheError unless it is what it should be."""
        if trick.group == "encrypt":
            found = Crt(self.key.p, self.key.q).decrypt(found[:2])
        if any(m != self.message for m in found):
            raise FlheError(f"{trick.name}: a wrong result; its times mean nothing")

    def _encrypting(self) -> list[Trick]:
        g, n, count = gmpy(), self.n, self.count
        base = g.powmod(self.key.h, n, self._square)
        halves = [(p * p, base % (p * p)) for p in (self.p, self.q)]
        bits = exponent_bits(n)
        exponents = [n % (p * (p - 1)) for p in (self.p, self.q)]
        tables = {half: self._tables(half) for half in (False, True)}

        def many(name: str, size: int, residue: Callable[[], Big]) -> Trick:
            return Trick(name, "encrypt", size, lambda: self._all(residue() for _ in range(size)))

        def by_python() -> Big:
            r = secrets.randbelow(int(n))
            return g.mpz(pow(r, int(n), int(self._square)))

        def by_crt() -> Big:
            r = secrets.randbelow(int(n))
            moduli = (self.p**2, self.q**2)
            powers = zip(exponents, moduli, strict=True)
            return self._join(*(g.powmod(r, e, m) for e, m in powers))

        def by_half() -> Big:
            a = secrets.randbits(bits)
            return self._join(*(g.powmod(u, a, square) for square, u in halves))

        def by_table(half: bool) -> Callable[[], Big]:
            def residue() -> Big:
                a = secrets.randbits(bits)
                return self._join(*(table.power(a) for table in tables[half]))

            return residue

        def drawn(workers: int) -> Callable[[], Sequence[Big]]:
            key = self.key
            return lambda: self._all(draw(key.p, key.q, key.h, count, workers))

        public = self._phe[0]
        message = int(self.message)
        few = min(count, 256)
        return [
            Trick(YARDSTICK, "encrypt", 4, lambda: [public.raw_encrypt(message) for _ in range(4)]),
            many("textbook, Python's pow", 1, by_python),
            many("textbook, GMP", 4, self._textbook),
            many("CRT", 8, by_crt),
            many(
                "DJN, half-length exponent",
                8,
                lambda: g.powmod(base, secrets.randbits(bits), self._square),
            ),
            many("DJN, CRT", 16, by_half),
            many("DJN, CRT, tables, made before", few, by_table(False)),
            many("DJN, CRT, tables of half length, made before", few, by_table(True)),
            Trick("flhe: draw, tables made and verified", "encrypt", count, drawn(0)),
            Trick("flhe: draw on 1 process", "encrypt", count, drawn(1)),
            Trick("flhe: draw on 2 processes", "encrypt", count, drawn(2), 2),
            Trick("flhe: encrypt, drawn ahead", "encrypt", count, self._seal, 1, self._prepare),
        ]

    def _decrypting(self) -> list[Trick]:
        g, p, q, n = gmpy(), self.p, self.q, self.n
        secret = math.lcm(int(p) - 1, int(q) - 1)
        undo = pow(secret, -1, int(n))
        crt, private = Crt(self.key.p, self.key.q), self._phe[1]
        c, size = self.ciphertext, 16
        back = g.invert(p, q)
        known = [(a, a * a, g.invert(-b, a)) for a, b in ((p, q), (q, p))]

        def textbook(power: Callable[[Any, Any, Any], Any]) -> Sequence[Big]:
            x = power(int(c), secret, int(self._square))
            return [(x - 1) // n * undo % n]

        def unverified() -> Big:
            x, y = ((g.powmod(c, a - 1, aa) - 1) // a * h_a % a for a, aa, h_a in known)
            return x + p * ((y - x) * back % q)

        return [
            Trick(YARDSTICK, "decrypt", 8, lambda: [private.raw_decrypt(int(c)) for _ in range(8)]),
            Trick("textbook, Python's pow", "decrypt", 1, lambda: textbook(pow)),
            Trick("textbook, GMP", "decrypt", 1, lambda: textbook(g.powmod)),
            Trick("CRT", "decrypt", 8, lambda: [unverified() for _ in range(8)]),
            Trick("flhe: CRT, verified", "decrypt", size, lambda: crt.decrypt([c] * size)),
            Trick(
                "flhe: CRT, verified, 2 threads",
                "decrypt",
                4 * size,
                lambda: crt.decrypt([c] * (4 * size), threads=2),
                2,
            ),
        ]

    def _textbook(self) -> Big:
        return gmpy().powmod(secrets.randbelow(int(self.n)), self.n, self._square)

    def _sealed(self, residue: Big) -> Big:
        return (1 + self.message * self.n) * residue % self._square

    def _all(self, residues: Iterable[Big]) -> Sequence[Big]:
        return [self._sealed(u) for u in residues]

    def _tables(self, half: bool) -> tuple[FixedBase, ...]:
        bits, h = exponent_bits(self.n), self.key.h
        width = self.width or 1
        return tuple(FixedBase(p, self.n, h, width, bits, half=half) for p in (self.p, self.q))

    def _scheme(self) -> Paillier:
        return Paillier(COHORT, 16, self.key.public.bits, self.key.public)

    def _slot(self) -> Slot:
        # Always the same: no exponent is derived from it, each encryption draws fresh ones.
        return Slot(0, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))

    def _prepare(self) -> None:
        self._ready = PaillierSealer(self._scheme(), self.key, 0)
        self._ready.prepare(self._slot(), self._values.size)

    def _seal(self) -> Sequence[Big]:
        assert self._ready is not None
        plain = Plain(self._values, np.empty(0, np.int64))
        sealed = self._ready.encrypt(plain, self._slot())
        return from_rows(sealed.data.reshape(self.count, -1))

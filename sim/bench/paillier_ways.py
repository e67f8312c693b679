"""Ways to encrypt and decrypt under Paillier, from the print to what flhe does.

`flhe_lab.bench.paillier` says what each of them is, and times them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.errors import ConfigError, FlheError
from flhe.math.bigint import Big, from_rows, gmpy
from flhe.schemes.batchcrypt.crt import Crt, Join
from flhe.schemes.batchcrypt.fixed_base import GmpTable, LaneTable, window
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.powers import FEW, fits
from flhe.schemes.batchcrypt.residue_pool import draw
from flhe.schemes.batchcrypt.residues import exponent_bits, in_lanes
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS, Paillier, PaillierSealer
from flhe_lab.bench.contender import SLOT, Contender
from flhe_lab.bench.phe import library

COHORT = 9
YARDSTICK = "phe"
Work = Callable[[], Sequence[Big]]
"""Gives ciphertexts, or decrypts some."""


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
        self._square = self.n * self.n
        self._join = Join(self.p**2, self.q**2)
        slots = self._scheme().batch
        # A vector whose batches are all one plaintext, and this plaintext.
        part = np.arange(slots.per, dtype=np.int32) * 7 % 1001 - 500
        self._values = np.tile(part, count)
        self._batch = slots.pack(part)[0]
        self.message = self._batch % self.n
        self.ciphertext = self._sealed(self._textbook())
        public = library().PaillierPublicKey(int(self.n))
        self._phe = public, library().PaillierPrivateKey(public, self.key.p, self.key.q)
        self._ready: PaillierSealer | None = None

    def all(self) -> list[Contender]:
        """Yardstick first, "encrypt: phe", then from the print to what flhe does."""
        return [*self._encrypting(), *self._decrypting()]

    def trick(
        self, group: str, name: str, count: int, work: Work, threads: int = 1, before: Any = None
    ) -> Contender:
        """One way to do it, timed a ciphertext of `count`; what its last turn gave is checked."""
        last: Sequence[Big] = []

        def kept() -> None:
            nonlocal last
            last = work()

        def error() -> float:
            self.check(group, name, last)
            return 0.0

        return Contender(
            f"{group}: {name}",
            {group: kept},
            error=error,
            projection=1 / count,
            before=before,
            threads=threads,
        )

    def check(self, group: str, name: str, found: Sequence[Big]) -> None:
        """Raise FlheError unless it is what it should be."""
        if group == "encrypt":
            found = Crt(self.key.p, self.key.q).decrypt(found[:2])
        batch, n = self._scheme().batch, self.n
        # What lies above the slots is a batch's tag, which flhe alone makes.
        slots, _ = batch.lower([m - n if 2 * m > n else m for m in found])
        if any(m != self._batch for m in slots):
            raise FlheError(f"{name}: a wrong result; its times mean nothing")

    def _encrypting(self) -> list[Contender]:
        g, n, count = gmpy(), self.n, self.count
        base = g.powmod(self.key.h, n, self._square)
        halves = [(p * p, base % (p * p)) for p in (self.p, self.q)]
        bits = exponent_bits(n)
        exponents = [n % (p * (p - 1)) for p in (self.p, self.q)]
        encrypt = partial(self.trick, "encrypt")

        def many(name: str, size: int, residue: Callable[[], Big]) -> Contender:
            return encrypt(name, size, lambda: self._all(residue() for _ in range(size)))

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

        public, message = self._phe[0], int(self.message)
        tricks = [
            encrypt(YARDSTICK, 16, lambda: [public.raw_encrypt(message) for _ in range(16)]),
            many("textbook, Python's pow", 1, by_python),
            many("textbook, GMP", 16, self._textbook),
            many("CRT", 16, by_crt),
            many(
                "DJN, half-length exponent",
                16,
                lambda: g.powmod(base, secrets.randbits(bits), self._square),
            ),
            many("DJN, CRT", 16, by_half),
            self._by_table("tables, entries of half length", GmpTable, False),
        ]
        by_lanes = in_lanes(self.key.p, self.key.q)
        if by_lanes:
            tricks.append(self._by_table("tables, eight lanes", LaneTable, True))
        one, two = ("thread", "threads") if by_lanes else ("process", "processes")
        return [
            *tricks,
            encrypt("flhe: tables made, verified", count, self._drawn(0)),
            encrypt(f"flhe: on 1 {one} beside", count, self._drawn(1)),
            encrypt(f"flhe: on 2 {two}", count, self._drawn(2), 2),
            encrypt("flhe: drawn ahead, batched", count, self._seal, 1, self._prepare),
        ]

    def _drawn(self, workers: int) -> Work:
        key = self.key
        return lambda: self._all(draw(key.p, key.q, key.h, self.count, workers))

    def _by_table(self, name: str, kind: type[Any], by_lanes: bool) -> Contender:
        """Over tables that were made before; on one thread, unverified."""
        bits, size = exponent_bits(self.n), min(self.count, 256)
        tables = []
        for p in (self.p, self.q):
            base = gmpy().powmod(self.key.h, self.n, p * p)
            width = window(p, bits, self.count, by_lanes) or 1
            tables.append(kind(p, base, width, bits))

        def work() -> Sequence[Big]:
            drawn = np.frombuffer(secrets.token_bytes(size * bits // 8), np.uint8)
            rows = drawn.reshape(size, bits // 8)
            pairs = zip(*(table.powers(rows, 1) for table in tables), strict=True)
            return self._all(self._join(x, y) for x, y in pairs)

        return self.trick("encrypt", f"DJN, CRT, {name}", size, work)

    def _decrypting(self) -> list[Contender]:
        g, p, q, n = gmpy(), self.p, self.q, self.n
        secret = math.lcm(int(p) - 1, int(q) - 1)
        undo = pow(secret, -1, int(n))
        crt, private = Crt(self.key.p, self.key.q), self._phe[1]
        c, decrypt = self.ciphertext, partial(self.trick, "decrypt")
        back = g.invert(p, q)
        known = [(a, a * a, g.invert(-b, a)) for a, b in ((p, q), (q, p))]

        def textbook(power: Callable[[Any, Any, Any], Any]) -> Sequence[Big]:
            x = power(int(c), secret, int(self._square))
            return [(x - 1) // n * undo % n]

        def unverified() -> Big:
            x, y = ((g.powmod(c, a - 1, aa) - 1) // a * h_a % a for a, aa, h_a in known)
            return x + p * ((y - x) * back % q)

        def ours(name: str, size: int, threads: int = 1) -> Contender:
            work = partial(crt.decrypt, [c] * size, threads)
            return decrypt(f"flhe: CRT, verified, {name}", size, work, threads)

        many = 256 if fits(self.key.p, 256) else 32
        where = "eight lanes" if many == 256 else "GMP"
        tricks = [
            decrypt(YARDSTICK, 32, lambda: [private.raw_decrypt(int(c)) for _ in range(32)]),
            decrypt("textbook, Python's pow", 1, lambda: textbook(pow)),
            decrypt("textbook, GMP", 1, lambda: textbook(g.powmod)),
            decrypt("CRT", 32, lambda: [unverified() for _ in range(32)]),
            ours("GMP", FEW - 1),  # so few are never computed in lanes
        ]
        if many == 256:
            tricks.append(ours(where, many))
        return [*tricks, ours(f"{where}, 2 threads", many, 2)]

    def _textbook(self) -> Big:
        return gmpy().powmod(secrets.randbelow(int(self.n)), self.n, self._square)

    def _sealed(self, residue: Big) -> Big:
        return (1 + self.message * self.n) * residue % self._square

    def _all(self, residues: Iterable[Big]) -> Sequence[Big]:
        return [self._sealed(u) for u in residues]

    def _scheme(self) -> Paillier:
        return Paillier(COHORT, 16, self.key.public.bits, self.key.public)

    def _prepare(self) -> None:
        self._ready = PaillierSealer(self._scheme(), self.key, bytes(32), 0)
        # No exponent is derived from the slot: each encryption draws fresh ones.
        self._ready.prepare(SLOT, self._values.size)

    def _seal(self) -> Sequence[Big]:
        assert self._ready is not None
        plain = Plain(self._values, np.empty(0, np.int64))
        sealed = self._ready.encrypt(plain, SLOT)
        return from_rows(sealed.data.reshape(self.count, -1))

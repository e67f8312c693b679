"""Keys of Paillier: n for the server, p and q for members.

    n = p q,  g = n + 1         c = (1 + m n) r^n mod n^2                  (Paillier, 1999, Scheme 1)
    r^n = h_s^a,  h_s = h^n,  h = -x^2 mod n,  a of ceil(|n| / 2) bits     (DJN 2010, Sec. 4.2)

p and q are primes of one length, 3 modulo 4, with gcd(p - 1, q - 1) = 2. The powers of h are then a
subgroup of small index among the numbers of Jacobi symbol 1. DJN assume, beside Paillier's
assumption, that these powers look random without the factors of n, even with half-length exponents.
x is hashed from n, so no member chooses it: an h of small order would hide nothing.

The subgroup variant is an option. p - 1 is a multiple of a secret prime a_p, and q - 1 of a_q, of
twice as many bits as the key has of security. h_s = h^(n (p - 1) / a_p) modulo p^2, likewise modulo
q^2, has the order a_p a_q. So exponents are a sixth as long: those of encryption are uniform below
a_p and a_q, and decryption raises to a_p and a_q (Paillier, 1999, Sec. 6). It takes a further
assumption, that powers of h_s look like random n-th residues. The best known attack on it takes the
square root of the smaller order in steps (Coron et al., 2011), 2^128 of them at 3072 bits.

Source: Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes"
(EUROCRYPT 1999); Damgård, Jurik, Nielsen, "A generalization of Paillier's public-key system with
applications to electronic voting" (2010); Jost, Ha, Lee, Zhang, "Encryption performance
improvements of the Paillier cryptosystem" (2015); Coron, Joux, Mandal, Naccache, Tibouchi,
"Cryptanalysis of the RSA subgroup assumption from TCC 2005" (PKC 2011).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from flhe.errors import ConfigError, ProtocolError
from flhe.math.bigint import PRIME_TESTS, Big, gmpy, random_blum_prime, random_prime
from flhe.wire import canonical
from flhe.wire.fields import BIG
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

KEY_BITS = {2048: 112, 3072: 128, 4096: 152}
"""Supported lengths of n, and their security in bits by NIST's rating (SP 800-57, Part 1, Table 2;
4096: SP 800-56B, Appendix D)."""

VERSION = 1
MAX_BYTES = 4096
"""Maximum length of an encoding, bytes."""
CLOSE = 100
"""p and q must differ in one of their highest 100 bits, or n falls to Fermat's method (FIPS 186-5,
A.1.1)."""


def check_key_bits(bits: int) -> None:
    """Refuse an unsupported length of n; ConfigError."""
    if type(bits) is not int or bits not in KEY_BITS:
        raise ConfigError(
            f"key_bits={bits!r}: 3072 has 128 bits of security, 2048 only 112 (the paper's), 4096 is "
            "there too"
        )


@dataclass(frozen=True, slots=True)
class PublicKey(Record):
    """The server's key: it multiplies ciphertexts modulo n^2. n is odd, at least 15."""

    FORM = Form("paillier-public", MAX_BYTES, "paillier-public", VERSION)

    n: Annotated[int, BIG] = field(repr=False)

    def _validate(self) -> None:
        if type(self.n) is not int or self.n < 15 or self.n % 2 == 0:
            raise ConfigError("PublicKey: n must be an odd integer, the product of two primes")

    @property
    def bits(self) -> int:
        """|n|, bits."""
        return self.n.bit_length()

    def check_ciphertexts(self, ciphertexts: Sequence[Big], whose: str = "") -> None:
        """Refuse invalid ciphertexts: each must lie strictly between 0 and n^2, coprime to n.

        One product modulo n and one gcd check all of them; a failure starts a search for the
        invalid one.

        Raises ProtocolError naming the first invalid ciphertext, its fault, and its owner `whose`.
        """
        g = gmpy()
        n = g.mpz(self.n)
        square = n * n
        product = g.mpz(1)
        for i, c in enumerate(ciphertexts):
            if not 0 < c < square:
                what = "is 0" if c == 0 else "is not below n^2"
                raise ProtocolError(
                    f"batchcrypt: ciphertext {i}{whose} {what}: it is no encryption"
                )
            product = product * c % n
        if g.gcd(product, n) == 1:
            return
        for i, c in enumerate(ciphertexts):
            if g.gcd(c, n) != 1:
                what = "a multiple of n" if c % n == 0 else "a multiple of a factor of n"
                raise ProtocolError(f"batchcrypt: ciphertext {i}{whose} is {what}: no encryption")

    def check(self, bits: int, _subgroup: bool = False) -> None:
        """Refuse an n of another length than agreed; ProtocolError."""
        if self.bits != bits:
            raise ProtocolError(
                f"batchcrypt: the public key has {self.bits} bits, the terms say {bits}"
            )


@dataclass(frozen=True, slots=True)
class SecretKey(Record):
    """The members' key, the primes: they encrypt fast and decrypt.

    `orders` is (a_p, a_q) in the subgroup variant, else empty.
    """

    FORM = Form("paillier-secret", MAX_BYTES, "paillier-secret", VERSION)

    p: Annotated[int, BIG] = field(repr=False)
    q: Annotated[int, BIG] = field(repr=False)
    orders: tuple[Annotated[int, BIG], ...] = field(default=(), repr=False)
    public: PublicKey = field(init=False, compare=False)

    def _validate(self) -> None:
        if not all(type(x) is int and x > 2 and x % 2 for x in (self.p, self.q)):
            raise ConfigError("SecretKey: p and q must be odd primes")
        if self.p == self.q:
            raise ConfigError("SecretKey: p and q must differ")
        if self.orders and not (len(self.orders) == 2 and min(self.orders) > 1):
            raise ConfigError("SecretKey: orders must be two primes, or none")
        object.__setattr__(self, "public", PublicKey(self.p * self.q))

    @classmethod
    def generate(
        cls, bits: int, subgroup: bool = False, *, random: Random = secrets.token_bytes
    ) -> SecretKey:
        """Make a key with an n of `bits` bits; about a second at 3072.

        Raises ConfigError: a length that is not built.
        """
        check_key_bits(bits)
        half, orders = bits // 2, tuple[int, ...]()
        if subgroup:
            orders = tuple(random_prime(2 * KEY_BITS[bits], random) for _ in range(2))
        a, b = orders or (1, 1)
        while True:
            p, q = random_blum_prime(half, random, a), random_blum_prime(half, random, b)
            made = cls(p, q, orders)
            if not made._unsound(bits, subgroup):
                return made

    @property
    def h(self) -> int:
        """-x^2 mod n, the base of DJN's exponentiation; x is n's hash, 128 bits longer than n."""
        n = self.public.n
        data = hashlib.shake_256(canonical.dumps(["flhe/v1/paillier-base", BIG.write(n)]))
        x = int.from_bytes(data.digest((n.bit_length() + 135) // 8), "big")
        return n - x * x % n

    def check(self, bits: int, subgroup: bool = False) -> None:
        """Refuse a key that an honest member would not have made.

        Raises ProtocolError: another length or variant; a factor that is not prime, or not 3 modulo
        4; factors too close; a common divisor of p - 1 and q - 1 besides 2, or of n and phi(n); an
        order that is not prime, of another length, or that does not fit its factor.
        """
        self.public.check(bits)
        if why := self._unsound(bits, subgroup):
            raise ProtocolError(f"batchcrypt: the key pair is unusable, {why}")

    def _unsound(self, bits: int, subgroup: bool) -> str:
        """Return what is wrong with the key, or nothing."""
        p, q, half = self.p, self.q, bits // 2
        if p.bit_length() != half or q.bit_length() != half:
            why = "its factors are not of one length"
        elif not all(gmpy().is_prime(x, PRIME_TESTS) for x in (p, q, *self.orders)):
            why = "a factor of it is not prime"
        elif p % 4 != 3 or q % 4 != 3:
            why = "a factor of it is not 3 modulo 4"
        elif not abs(p - q) >> (half - CLOSE):
            why = "its factors are too close"
        elif math.gcd(p - 1, q - 1) != 2 or math.gcd(self.public.n, (p - 1) * (q - 1)) != 1:
            why = "its factors are related"
        elif bool(self.orders) != subgroup:
            why = f"it is {'' if self.orders else 'not '}of the subgroup variant"
        elif not all(map(self._fits, (p, q), self.orders)):
            why = "an order does not fit its factor"
        else:
            why = ""
        return why

    def _fits(self, factor: int, order: int) -> bool:
        """Return whether the subgroup of `order` modulo `factor` is as large as it must be."""
        bits = 2 * KEY_BITS.get(self.public.bits, 0)
        long, divides = order.bit_length() == bits, (factor - 1) % order == 0
        return long and divides and pow(self.h, (factor - 1) // order, factor) != 1

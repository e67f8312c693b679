"""ESHE, a second time: Python's integers, products of polynomials by definition.

It knows the protocol and nothing of the library. A polynomial is drawn as its values at the odd powers
of a root; a short product is a sum of products of coefficients, a long one goes by even and odd halves.
Residues come together again by the Chinese remainder theorem.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
import pathlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import gmpy2

from tests.coding.test_pack import reference as packed
from tests.coding.test_support_vectors import cbor
from tests.math.test_permutation_vectors import NEAR, block, context, hkdf
from tests.math.test_sampling import probabilities

FILE = pathlib.Path(__file__).parents[1] / "vectors/eshe.json"

Q = 2**64 - 2**32 + 1
GOLDILOCKS = "goldilocks-4096"
RINGS = {
    GOLDILOCKS: (4096, 64),
    "rns-4096": (4096, 104),
    "rns-8192": (8192, 206),
    "rns-16384": (16384, 420),
    "paper-32768": (32768, 478),
}
"""Name -> dimension, and most bits of the modulus."""

Rows = list[list[int]]
"""Residues, limb by limb."""


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def little(numbers: list[int], nbytes: int = 8) -> bytes:
    return b"".join((x % 256**nbytes).to_bytes(nbytes, "little") for x in numbers)


# --- words, and what is drawn from them ---


def word(key: bytes, stream: int, number: int) -> int:
    """A word of 64 bits of a key stream."""
    pair = block(key, stream, number // 2)
    return int.from_bytes(pair[8 * (number % 2) :][:8], "little")


def drawn_again(key: bytes, j: int, n: int, q: int) -> list[int]:
    """Places of block j whose first word is no use."""
    return [i for i in range(n) if word(key, 0, j * n + i) % 2 ** q.bit_length() >= q]


def elements(key: bytes, j: int, n: int, q: int) -> list[int]:
    """Block j of n residues: words cut to the bits of q; those that are too large drawn again."""
    size = 2 ** q.bit_length()
    again = (word(key, 1 + j, number) % size for number in itertools.count())
    first = [word(key, 0, j * n + i) % size for i in range(n)]
    return [x if x < q else next(y for y in again if y < q) for x in first]


@functools.cache
def thresholds() -> list[int]:
    """Of 2**63 words, how many give a magnitude of at most 0, 1, ... 39: sigma 4.53, to 9 sigma."""
    inside = probabilities("4.53")[:41]
    below = list(itertools.accumulate(inside))
    return [math.floor(x / below[-1] * 2**63 + Fraction(1, 2)) for x in below[:-1]]


@functools.lru_cache(maxsize=64)
def gaussian(key: bytes, count: int) -> list[int]:
    """The last bit of a word is the sign."""
    out = []
    for i in range(count):
        magnitude, minus = divmod(word(key, 0, i), 2)
        size = bisect.bisect_right(thresholds(), magnitude)
        out.append(-size if minus else size)
    return out


# --- polynomials ---


@functools.cache
def root(q: int, n: int) -> int:
    """Of order 2 n: a power of the first number that has one. For Q that number is 7."""
    found = (pow(g, (q - 1) // (2 * n), q) for g in itertools.count(2))
    return next(w for w in found if pow(w, n, q) == q - 1)


@functools.cache
def odd_powers(w: int, q: int, count: int) -> list[int]:
    return list(itertools.accumulate([w] + [w * w % q] * (count - 1), lambda x, y: x * y % q))


def values_of(f: list[int], w: int, q: int) -> list[int]:
    """f(w), f(w**3), f(w**5), ...: f(x) is even(x * x) + x odd(x * x)."""
    if len(f) == 1:
        return f
    even, odd = (values_of(half, w * w % q, q) for half in (f[::2], f[1::2]))
    turned = [x * t for x, t in zip(odd, odd_powers(w, q, len(odd)), strict=True)]
    pairs = list(zip(even, turned, strict=True))
    return [(x + y) % q for x, y in pairs] + [(x - y) % q for x, y in pairs]


def many_times(values: list[int], back: int, q: int) -> list[int]:
    """len(values) times the polynomial that has these values; `back` is 1 / w."""
    if len(values) == 1:
        return values
    half = len(values) // 2
    pairs = list(zip(values[:half], values[half:], strict=True))
    even = many_times([(x + y) % q for x, y in pairs], back * back % q, q)
    turns = odd_powers(back, q, half)
    turned = [(x - y) * t % q for (x, y), t in zip(pairs, turns, strict=True)]
    odd = many_times(turned, back * back % q, q)
    return [x for pair in zip(even, odd, strict=True) for x in pair]


def polynomial_of(values: list[int], w: int, q: int) -> list[int]:
    scale = pow(len(values), -1, q)
    return [x * scale % q for x in many_times(values, pow(w, -1, q), q)]


def ordered(values: list[int]) -> list[int]:
    """Place i holds the value at w**(2 r + 1), r being i with its bits reversed: by r."""
    bits = len(values).bit_length() - 1
    return [values[int(f"{r:0{bits}b}"[::-1], 2)] for r in range(len(values))]


@functools.lru_cache(maxsize=32)
def drawn(key: bytes, j: int, n: int, q: int) -> list[int]:
    """a of block j, as it is drawn: its values."""
    return elements(key, j, n, q)


@functools.lru_cache(maxsize=32)
def uniform(key: bytes, j: int, n: int, q: int) -> list[int]:
    """a of block j: its coefficients."""
    return polynomial_of(ordered(drawn(key, j, n, q)), root(q, n), q)


def coefficient(a: list[int], b: list[int], d: int) -> int:
    """Coefficient d of a b modulo x**n + 1, by its definition."""
    inside = sum(x * y for x, y in zip(a[: d + 1], b[d::-1], strict=True))
    return inside - sum(x * y for x, y in zip(a[d + 1 :], b[:d:-1], strict=True))


def product(a_values: list[int], s_values: list[int], q: int) -> list[int]:
    """All coefficients of a s, from values in the order of `values_of`."""
    both = zip(a_values, s_values, strict=True)
    return polynomial_of([x * y % q for x, y in both], root(q, len(s_values)), q)


# --- sizes ---


@functools.cache
def primes(n: int, bits: int, count: int) -> list[int]:
    """The largest below 2**bits that are 1 modulo 2 n."""
    candidates = (2 * n * k + 1 for k in range((2**bits - 2) // (2 * n), 0, -1))
    return list(itertools.islice(filter(gmpy2.is_prime, candidates), count))


def opens(q: int, p: int, cohort: int) -> bool:
    """q / 2 > p (8 sigma sqrt(N) + 1) + p, times 100 and squared."""
    room = 50 * q - 200 * p
    return room > 0 and room**2 > (8 * 453 * p) ** 2 * cohort


@dataclass(frozen=True)
class Second:
    """Our ESHE in Python integers.

    Parameters
    ----------
    cohort, bits, ring, keys
        As for `Eshe`.
    slot : dict
        The round.
    group_key : bytes
        K_G.
    """

    cohort: int
    bits: int = 16
    ring: str = GOLDILOCKS
    keys: str = "joint"
    slot: Any = None
    group_key: bytes = hashlib.sha256(b"eshe 396700").digest()
    """The first of its kind under which a word of NEAR's first Goldilocks block is drawn again."""

    @property
    def n(self) -> int:
        return RINGS[self.ring][0]

    @functools.cached_property
    def b(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @functools.cached_property
    def width(self) -> int:
        return next(k for k in range(64) if 1 << k > 2 * self.b * self.cohort)

    @functools.cached_property
    def sizes(self) -> tuple[int, int, list[int]]:
        """Slots, bits of a residue, moduli: as few limbs as can be, of as few bits; then the fewest
        bits a value, and the fewest slots.
        """
        log_q = RINGS[self.ring][1]
        found = []
        for per in range(1, log_q // self.width + 1):
            limbs, bits, moduli = self.fewest(2 ** (per * self.width))
            if math.prod(moduli).bit_length() <= log_q:
                found.append((Fraction(limbs * bits, per), per, bits, moduli))
        return min(found)[1:]

    def fewest(self, p: int) -> tuple[int, int, list[int]]:
        if self.ring == GOLDILOCKS:  # one limb; a modulus of 2**64 and more is too long
            return 1, 64, [Q] if opens(Q, p, self.cohort) else [2**64]
        for limbs in itertools.count(1):
            if opens(math.prod(primes(self.n, 63, limbs)), p, self.cohort):
                least = p.bit_length() // limbs
                for bits in range(max(least, self.n.bit_length() + 8), 64):
                    moduli = primes(self.n, bits, limbs)
                    if opens(math.prod(moduli), p, self.cohort):
                        return limbs, bits, moduli
        raise AssertionError

    @property
    def per(self) -> int:
        return self.sizes[0]

    @property
    def moduli(self) -> list[int]:
        return self.sizes[2]

    @functools.cached_property
    def p(self) -> int:
        return 1 << (self.per * self.width)

    @property
    def context(self) -> list[Any]:
        return context(self.slot or NEAR)

    def count(self, length: int) -> int:
        return (length + self.per - 1) // self.per

    def blocks(self, count: int) -> int:
        return (count + self.n - 1) // self.n

    def a_key(self, limb: int) -> bytes:
        return hkdf(self.group_key, "eshe-a", *self.context, self.ring, limb)

    def products(self, s: list[int], count: int) -> Rows:
        """The first coefficients of a s, block after block: the last block is cut."""
        rows: Rows = []
        for limb, q in enumerate(self.moduli):
            row: list[int] = []
            s_values = values_of(s, root(q, self.n), q) if count > 50 else []
            for j in range(self.blocks(count)):
                block_ = self.a_key(limb), j, self.n, q
                wanted = min(self.n, count - len(row))
                if wanted > 50:
                    row += product(ordered(drawn(*block_)), s_values, q)[:wanted]
                else:
                    row += [coefficient(uniform(*block_), s, d) % q for d in range(wanted)]
            rows.append(row)
        return rows

    def encrypt(self, s: list[int], noise: bytes, plain: list[int]) -> Rows:
        count = self.count(len(plain))
        e = gaussian(noise, count)
        m = [0] * count
        for i, v in enumerate(plain):
            m[i // self.per] += (v + self.b) << (self.width * (i % self.per))
        return [
            [(x + self.p * e[d] + m[d]) % q for d, x in enumerate(row)]
            for row, q in zip(self.products(s, count), self.moduli, strict=True)
        ]

    def noise_bound(self, senders: int) -> int:
        """8 sigma sqrt(N), rounded up, or all at 40."""
        square = (8 * 453) ** 2 * senders
        return min(40 * senders, next(k for k in itertools.count() if (100 * k) ** 2 >= square))

    def open(
        self, total: Rows, s: list[int], senders: int, length: int
    ) -> tuple[list[int], list[int]]:
        """Sums of values, and of noise; ValueError says what is wrong."""
        q = math.prod(self.moduli)
        left = [
            [(x - y) % m for x, y in zip(row, masks, strict=True)]
            for row, masks, m in zip(
                total, self.products(s, self.count(length)), self.moduli, strict=True
            )
        ]
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
        if any(slots[length:]):
            raise ValueError("a slot beyond the last value is not empty")
        return [u - senders * self.b for u in slots[:length]], noise

    def elements(self, s: list[int]) -> list[int]:
        """A key as field elements: digits that have room for the sum of all."""
        bits = len(f"{40 * self.cohort:b}") + 1
        per = 63 // bits
        runs = [s[at : at + per] for at in range(0, len(s), per)]
        return [sum(x * 2 ** (bits * k) for k, x in enumerate(run)) % Q for run in runs]

    def wire(self, rows: Rows) -> bytes:
        """Limb after limb."""
        if self.ring == GOLDILOCKS:
            return little(rows[0])
        return b"".join(packed(row, self.sizes[1]) for row in rows)

    def header(self, senders: list[int], length: int, /, **other: Any) -> bytes:
        fields = {
            "version": 2,
            "scheme": "esafl",
            "mode": "",
            "slot": self.context,
            "senders": senders,
            "length": length,
            "supports": [],
        }
        return cbor(list((fields | other).values()))

    def message(
        self, senders: list[int], rows: Rows, length: int, /, **other: Any
    ) -> dict[str, str]:
        header = self.header(senders, length, **other)
        return {"header": header.hex(), "body": self.wire(rows).hex()}

    def told(self) -> dict[str, Any]:
        """What a case says of its scheme."""
        return {
            "cohort": self.cohort,
            "bits": self.bits,
            "ring": self.ring,
            "keys": self.keys,
            "slot": self.slot or NEAR,
            "group_key": self.group_key.hex(),
        }


def key_seed(rank: int) -> bytes:
    return hashlib.sha256(f"eshe key {rank}".encode()).digest()


def noise_seed(rank: int) -> bytes:
    return hashlib.sha256(f"eshe noise {rank}".encode()).digest()


def own(rank: int, n: int) -> list[int]:
    return gaussian(key_seed(rank), n)


def columns(vectors: Rows) -> list[int]:
    return [sum(column) for column in zip(*vectors, strict=True)]


def key_of(ranks: Any, n: int) -> list[int]:
    """The sum of their keys."""
    return columns([own(rank, n) for rank in ranks])


def added(second: Second, parts: list[Rows]) -> Rows:
    return [
        [x % q for x in columns(list(rows))]
        for rows, q in zip(zip(*parts, strict=True), second.moduli, strict=True)
    ]

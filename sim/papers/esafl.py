"""ESHE as its paper has it: p and q powers of two, ternary keys of weight 64; for comparison only.

    c_i = a^t s_i + p~ e_i + m_i  mod q        in Z[x] / (x^n + 1)                      (Eq. 3)
    sum of c_i opens to [[C - a^t s]_q]_p,     s = sum of s_i                           (Eq. 5)

n = 2^15, q = 2^478, p = 2^460, p~ the polynomial whose coefficients are all p, keys of 64 coefficients
-1 or 1, errors of variance 1.22 (Sec. 8.1.2). As printed it breaks in several ways, which
`tests/schemes/test_eshe_attacks.py` runs and `flhe corrections` lists.

What the text leaves open, and what is built here:

- *Weight or uniform?* "each coefficient is sampled uniformly from {-1, 0, 1} with parameter 64" is two
  distributions; 64 is taken for the Hamming weight.
- *PRG.* Of [4] in the paper: AES in counter mode, here under HKDF of the k-bit seed.
- *[.]_q and [.]_p.* The first is centered, the second is not: slots are unsigned.

Coefficients are Python integers, products are made by Kronecker's substitution: one product of two
integers of megabits, by GMP where gmpy2 is installed.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 5.2.1, Fig. 2. Ours: `flhe.schemes.esafl.scheme`.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flhe.math.prg import words
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random

Poly = list[int]
"""Coefficients, lowest first."""

LOG_Q = 478
Q = 1 << LOG_Q
WIDTH = (LOG_Q + 7) // 8
"""Ciphertext modulus, and bytes of a coefficient."""

VARIANCE = 1.22
"""Of an error's coefficients."""

TAIL = 9
"""Where the error's distribution is cut, in standard deviations."""


@dataclass(frozen=True, slots=True)
class PaperEshe:
    """The paper's scheme among `cohort` clients."""

    cohort: int  # N, 2 or more
    n: int = 1 << 15  # Dimension, a power of two
    p: int = 1 << 460  # Plaintext modulus; the paper's is a power of two
    tilde: bool = True
    """Whether all coefficients of p~ are p, as printed, or the constant one alone."""
    weight: int = 64  # Coefficients of a key that are not zero

    def key(self, random: Random = secrets.token_bytes) -> Poly:
        """s_i, n coefficients -1, 0 or 1."""
        out = [0] * self.n
        while self.n - out.count(0) < self.weight:
            word = int.from_bytes(random(8), "big")
            out[(word >> 1) % self.n] = 2 * (word & 1) - 1
        return out

    def error(self, random: Random = secrets.token_bytes) -> Poly:
        """e_i, n coefficients, discrete Gaussian."""
        reach = math.ceil(TAIL * math.sqrt(VARIANCE))
        support = np.arange(-reach, reach + 1)
        mass = np.exp(-(support.astype(np.float64) ** 2) / (2 * VARIANCE))
        borders = np.cumsum(mass)[:-1] / mass.sum()
        drawn = np.frombuffer(random(8 * self.n), np.uint64) >> np.uint64(11)
        found: Poly = support[np.searchsorted(borders, drawn * 2.0**-53, side="right")].tolist()
        return found

    def public(self, random: Random = secrets.token_bytes) -> Poly:
        """a^0: uniform, public, and `a` of round 1 (Fig. 2)."""
        return _cut(random(self.n * WIDTH))

    def polynomial(self, t: int, b: int) -> Poly:
        """a^t of round t >= 2, from the k bits of B (Eq. 6)."""
        key = hkdf((t ^ b).to_bytes(8, "big"), "sim/paper-esafl")
        # Stream 0 from its beginning: the paper has nothing but the seed to tell rounds apart by.
        found = words(key, 0, -(-self.n * WIDTH // 8))
        return _cut(b"".join(part.tobytes() for _, part in found)[: self.n * WIDTH])

    def encrypt(
        self, a: Poly, key: Poly, m: Sequence[int], random: Random = secrets.token_bytes
    ) -> Poly:
        """c_i = [a s_i + p~ e_i + m]_q, coefficients below q (Eq. 3)."""
        e = self.error(random)
        if self.tilde:
            e = times_ones(e)
        masks, p = multiply(a, key), self.p
        return [(x + p * y + z) % Q for x, y, z in zip(masks, e, m, strict=True)]

    def add(self, parts: Iterable[Poly]) -> Poly:
        """C, the sum of ciphertexts (Eq. 4)."""
        return [sum(column) % Q for column in zip(*parts, strict=True)]

    def decrypt(self, a: Poly, s: Poly, total: Poly) -> Poly:
        """[[C - a s]_q]_p, coefficients below p (Eq. 5)."""
        half = Q >> 1
        masks = multiply(a, s)
        return [((x - y + half) % Q - half) % self.p for x, y in zip(total, masks, strict=True)]


def _cut(data: bytes) -> Poly:
    return [
        int.from_bytes(data[at : at + WIDTH], "little") & (Q - 1)
        for at in range(0, len(data), WIDTH)
    ]


# --- Z[x] / (x^n + 1), coefficients of any size ---


def multiply(x: Sequence[int], y: Sequence[int]) -> Poly:
    """Product modulo x^n + 1 of signed polynomials of one length n, exact.

    Both are evaluated at 256^w, w so large that no coefficient of the product reaches the next one.
    """
    n = len(x)
    bound = n * max(1, *map(abs, x)) * max(1, *map(abs, y))
    width = (bound.bit_length() + 8) // 8  # below 256^w / 2, whatever its sign
    # Half of 256^w everywhere makes digits of what may be negative.
    half, ones = 1 << (8 * width - 1), b"\1" + bytes(width - 1)
    product = _at(x, width) * _at(y, width) + half * _integer(ones * (2 * n))
    data = product.to_bytes(2 * n * width + 1, "little")
    digits = [
        int.from_bytes(data[at : at + width], "little") for at in range(0, 2 * n * width, width)
    ]
    return [low - high for low, high in zip(digits[:n], digits[n:], strict=True)]


def times_ones(x: Sequence[int]) -> Poly:
    """Product with 1 + x + ... + x^(n-1), modulo x^n + 1."""
    total = sum(x)
    return [2 * before - total for before in itertools.accumulate(x)]


def _at(x: Sequence[int], width: int) -> Any:
    low = min(x)
    value = _integer(b"".join((each - low).to_bytes(width, "little") for each in x))
    return value + low * _integer((b"\1" + bytes(width - 1)) * len(x)) if low else value


def _integer(data: bytes) -> Any:
    try:
        from gmpy2 import mpz
    except ImportError:
        return int.from_bytes(data, "little")
    return mpz.from_bytes(data, "little")

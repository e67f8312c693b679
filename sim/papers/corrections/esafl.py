"""What ESAFL's text gets wrong or leaves open, shown on its scheme as printed.

Keys are found from low bits: p and q are powers of two, and so is everything that hides a s there.
`tests/schemes/test_eshe_attacks.py` does it for any `a`, in the paper's dimension, and tries the same
against ours.

Source: Wu, Zhang, Luo, "ESAFL".
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from flhe_lab.papers.corrections.proof import Fixed, Found, shows
from flhe_lab.papers.esafl import BrokenSchemeWarning, PaperEshe, Poly, multiply

N = 256
LOW = 21
"""Bits of the zero polynomial's field: log2 q0 = 16 and padding for nine clients."""


def printed(cohort: int = 9, n: int = N, **others: Any) -> PaperEshe:
    """The scheme as printed, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenSchemeWarning)  # that is what is shown
        return PaperEshe(cohort, n, **others)


def message(n: int, seed: int) -> Poly:
    """Fields of a plaintext; the lowest is the zero polynomial (Eq. 9)."""
    random = Fixed(seed)
    return [int.from_bytes(random(50), "big") << LOW for _ in range(n)]


def odd(a: Poly) -> Poly:
    """`a` of a round in which a(1) is odd: half of all rounds, and the simpler half."""
    return [a[0] ^ ~sum(a) & 1, *a[1:]]


def _inverse(a: Poly, bits: int) -> Poly:
    """1 / a modulo 2^bits and x^n + 1, for an odd a(1): units are a group of 2^k, so it is a power.

    a^n = 1 modulo 2, hence a^(n 2^(bits - 1)) = 1 modulo 2^bits.
    """
    mask, out = (1 << bits) - 1, [1] + [0] * (len(a) - 1)
    power = [x & mask for x in a]
    for _ in range(len(a).bit_length() - 1 + bits - 1):
        out = [x & mask for x in multiply(out, power)]
        power = [x & mask for x in multiply(power, power)]
    return out


def key_from(c: Poly, a: Poly, bits: int = 3) -> Poly:
    """s, from the low bits of c = a s + p~ e + m where m and p vanish, as it is where it is ternary."""
    size = 1 << bits
    found = multiply([x % size for x in c], _inverse(a, bits))
    return [(x + size // 2) % size - size // 2 for x in found]


@shows("esafl-low-bits")
def _low_bits() -> Found:
    eshe = printed()
    a, key = odd(eshe.public(Fixed(1))), eshe.key(Fixed(2))
    found = key_from(eshe.encrypt(a, key, message(N, 3), Fixed(4)), a)
    later, m = eshe.polynomial(7, 3), message(N, 5)
    opened = eshe.decrypt(later, found, eshe.encrypt(later, key, m, Fixed(6)))
    right = sum(x == y for x, y in zip(found, key, strict=True))
    return Found(
        f"One ciphertext of round 1 and its `a`, n = {N}: {right} of {N} coefficients of the key "
        f"are found, and a ciphertext of round 7 {'opens' if opened == m else 'does not open'} "
        "with it.",
        found == key and opened == m,
    )


@shows("esafl-all-ones")
def _parity() -> Found:
    eshe = printed(p=(1 << 460) - 1)
    a, key = odd(eshe.public(Fixed(1))), eshe.key(Fixed(2))
    c = eshe.encrypt(a, key, message(N, 3), Fixed(4))
    uneven = np.array(multiply([x & 1 for x in c], _inverse(a, 1))) % 2 == 1
    uneven = uneven if 2 * uneven.sum() <= uneven.size else ~uneven
    right = int((uneven == (np.array(key) != 0)).sum())
    return Found(
        f"With an odd p instead, parities of one ciphertext tell of {right} of {N} coefficients "
        "of the key whether they are zero.",
        right == N,
    )


@shows("esafl-one-a")
def _one_a() -> Found:
    eshe = printed()
    a, key = eshe.polynomial(2, 9), eshe.key(Fixed(1))
    first, second = message(N, 2), message(N, 3)
    parts = [eshe.encrypt(a, key, m, Fixed(4 + i)) for i, m in enumerate((first, second))]
    q, p = eshe.q, eshe.p
    seen = [((x - y + q // 2) % q - q // 2) % p for x, y in zip(*parts, strict=True)]
    right = sum(d == (x - y) % p for d, x, y in zip(seen, first, second, strict=True))
    return Found(
        "Two ciphertexts of one client and round: their difference modulo p is that of the "
        f"plaintexts in {right} of {N} coefficients, without any key.",
        right == N,
    )


@shows("esafl-short-seed")
def _seed() -> Found:
    bits, n = 6, 64
    eshe = printed(n=n, weight=16, seed_bits=bits)
    b, t, key = 41, 40, eshe.key(Fixed(1))
    while sum(eshe.polynomial(t, b)) % 2 == 0:  # the simpler half, as above
        t -= 1
    c = eshe.encrypt(eshe.polynomial(t, b), key, message(n, 2), Fixed(3))
    hits = []
    for guess in range(1 << bits):
        a = eshe.polynomial(t, guess)
        if sum(a) % 2 and max(map(abs, found := key_from(c, a))) <= 1:
            hits.append((guess, found))
    return Found(
        f"50 rounds, and k = {bits}, the least that is allowed: of {1 << bits} guesses of B "
        f"{len(hits)} gives a ternary key, and it is {'the' if hits == [(b, key)] else 'not the'} key.",
        hits == [(b, key)],
    )


@shows("esafl-collusion")
def _collusion() -> Found:
    eshe = printed(3, n=1 << 15)
    keys = [np.array(eshe.key(Fixed(i))) for i in range(3)]
    both = keys[1] + keys[2]  # what the third client knows, of s and its own key
    unknown, wide = int((np.abs(both) == 1).sum()), 1 << 15
    return Found(
        f"N = 3, n = {wide:,}: whoever knows s and one key has {unknown} coefficients of the "
        f"others' keys left to find, one bit each, at known places: 2^{unknown // 2} sums in each "
        "half of a meeting in the middle, and little for lattice reduction. Of Gaussian keys all "
        f"{wide:,} are left.",
        100 < unknown <= 128,
    )

"""What ESAFL's text gets wrong or leaves open, shown on its scheme as printed.

Keys are found from low bits: p and q are powers of two, and so is everything that hides a s there.
`tests/schemes/test_eshe_attacks.py` tries the same against ours.

Source: Wu, Zhang, Luo, "ESAFL".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe_lab.papers.corrections.proof import Found, fixed
from flhe_lab.papers.esafl import PaperEshe, Poly, Q, multiply
from flhe_lab.papers.packing import COHORT, ERRORS, LOG_P, TABLE_3, PaperPacking, added, vectors

N = 256
LOW = 21
"""Bits of the zero polynomial's field: log2 q0 = 16 and padding for nine clients."""


def printed(cohort: int = 9, n: int = N, **others: Any) -> PaperEshe:
    """The scheme as printed."""
    return PaperEshe(cohort, n, **others)


def message(n: int, seed: int) -> Poly:
    """Fields of a plaintext; the lowest is the zero polynomial (Eq. 9)."""
    random = fixed(seed)
    return [int.from_bytes(random(50), "big") << LOW for _ in range(n)]


def odd(a: Poly) -> Poly:
    """`a` of a round in which a(1) is odd: half of all rounds, and the simpler half."""
    return [a[0] ^ ~sum(a) & 1, *a[1:]]


def inverse(a: Poly, bits: int) -> Poly:
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
    found = multiply([x % size for x in c], inverse(a, bits))
    return [(x + size // 2) % size - size // 2 for x in found]


def odd_places(c: Poly, a: Poly) -> NDArray[np.bool_]:
    """Where s is odd, or its complement, whichever is smaller: for an odd p and even q and m."""
    odd: NDArray[np.bool_] = np.array(multiply([x & 1 for x in c], inverse(a, 1))) % 2 == 1
    return odd if 2 * odd.sum() <= odd.size else ~odd


def _esafl_low_bits() -> Found:
    eshe = printed()
    a, key = odd(eshe.public(fixed(1))), eshe.key(fixed(2))
    found = key_from(eshe.encrypt(a, key, message(N, 3), fixed(4)), a)
    later, m = eshe.polynomial(7, 3), message(N, 5)
    opened = eshe.decrypt(later, found, eshe.encrypt(later, key, m, fixed(6)))
    right = sum(x == y for x, y in zip(found, key, strict=True))
    return Found(
        f"One ciphertext of round 1 and its `a`, n = {N}: {right} of {N} coefficients of the key "
        f"are found, and a ciphertext of round 7 {'opens' if opened == m else 'does not open'} "
        "with it.",
        found == key and opened == m,
    )


def _esafl_all_ones() -> Found:
    eshe = printed(p=(1 << 460) - 1)
    a, key = odd(eshe.public(fixed(1))), eshe.key(fixed(2))
    c = eshe.encrypt(a, key, message(N, 3), fixed(4))
    right = int((odd_places(c, a) == (np.array(key) != 0)).sum())
    return Found(
        f"With an odd p instead, parities of one ciphertext tell of {right} of {N} coefficients "
        "of the key whether they are zero.",
        right == N,
    )


def _esafl_one_a() -> Found:
    eshe = printed()
    a, key = eshe.polynomial(2, 9), eshe.key(fixed(1))
    first, second = message(N, 2), message(N, 3)
    parts = [eshe.encrypt(a, key, m, fixed(4 + i)) for i, m in enumerate((first, second))]
    p = eshe.p
    seen = [((x - y + Q // 2) % Q - Q // 2) % p for x, y in zip(*parts, strict=True)]
    right = sum(d == (x - y) % p for d, x, y in zip(seen, first, second, strict=True))
    return Found(
        "Two ciphertexts of one client and round: their difference modulo p is that of the "
        f"plaintexts in {right} of {N} coefficients, without any key.",
        right == N,
    )


def _esafl_short_seed() -> Found:
    bits, n = 6, 64
    eshe = printed(n=n, weight=16)
    b, t, key = 41, 40, eshe.key(fixed(1))
    while sum(eshe.polynomial(t, b)) % 2 == 0:  # the simpler half, as above
        t -= 1
    c = eshe.encrypt(eshe.polynomial(t, b), key, message(n, 2), fixed(3))
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


def _esafl_collusion() -> Found:
    eshe = printed(3, n=1 << 15)
    keys = [np.array(eshe.key(fixed(i))) for i in range(3)]
    both = keys[1] + keys[2]  # what the third client knows, of s and its own key
    unknown, wide = int((np.abs(both) == 1).sum()), 1 << 15
    return Found(
        f"N = 3, n = {wide:,}: whoever knows s and one key has {unknown} coefficients of the "
        f"others' keys left to find, one bit each, at known places: 2^{unknown // 2} sums in each "
        "half of a meeting in the middle, and little for lattice reduction. Of Gaussian keys all "
        f"{wide:,} are left.",
        100 < unknown <= 128,
    )


# --- what the text claims of keys and rounds: Sec. 4.2, 5.1, 7.1 and 8.1.2, Fig. 2 ---


def _esafl_density() -> Found:
    sigma, y = 1.5, 3.0
    x = np.linspace(-30, 30, 60_001)
    bell = np.exp(-((x - y / 2) ** 2) / sigma**2) / (math.sqrt(math.pi) * sigma)
    as_printed = math.exp(-(y**2) / (2 * sigma**2)) * bell
    mass = float(as_printed.sum() * (x[1] - x[0]))
    # Of the first of three given their sum: its density, times that of the others' sum.
    given = np.exp(-(x**2) / (2 * sigma**2) - (y - x) ** 2 / (4 * sigma**2))
    given /= given.sum()
    right = float(given @ x**2 - (given @ x) ** 2)
    variance = 2 * sigma**2 * (sigma**2 / 2) / (3 * sigma**2 / 2 + 2 * sigma**2)
    return Found(
        f"sigma = {sigma}, y = {y}: Eq. 13 with its A_1 integrates to {mass:.3f}, not 1. One of "
        f"three given their sum would have a variance of {variance / sigma**2:.3f} sigma^2; it is "
        f"{right / sigma**2:.3f} sigma^2.",
        mass < 0.2 and abs(right / sigma**2 - 2 / 3) < 1e-6 and variance < right / 2,
    )


def _esafl_security() -> Found:
    from flhe_lab.papers.lattice import primal_errors, primal_sparse

    sigma = math.sqrt(1.22)
    alone = primal_sparse(1 << 15, 478, sigma, 64)
    uniform = primal_errors(1 << 15, 478, sigma).bits
    known = primal_errors(128, 478 - 460, math.sqrt(1.22 + 1 / 12))
    return Found(
        f"n = 2^15, log q = 478, weight 64: {alone:.0f} bits for who sees ciphertexts, where keys "
        f"as wide as errors have {uniform:.0f}; {known.bits:.0f} bits, the smallest block there "
        "is, for a client that knows s at N = 3.",
        alone < min(uniform - 20, 256) and known.bits < 50,
    )


def _esafl_weights() -> Found:
    counts = (1200, 300)
    gradients = (0.5, -0.25)
    as_printed = sum(n * g for n, g in zip(counts, gradients, strict=True)) / len(counts)
    mean = sum(n * g for n, g in zip(counts, gradients, strict=True)) / sum(counts)
    return Found(
        f"Clients of {counts[0]} and {counts[1]} records with gradients {gradients[0]} and "
        f"{gradients[1]}: the update divides by N and takes {as_printed:g}; the weighted mean is "
        f"{mean:g}.",
        abs(as_printed / mean - sum(counts) / len(counts)) < 1e-9,
    )


def _esafl_dropout() -> Found:
    eshe = printed(3)
    a, keys = eshe.polynomial(2, 9), [eshe.key(fixed(i)) for i in range(3)]
    messages = [message(N, 10 + i) for i in range(3)]
    parts = [
        eshe.encrypt(a, k, m, fixed(20 + i))
        for i, (k, m) in enumerate(zip(keys, messages, strict=True))
    ]
    s = [sum(column) for column in zip(*keys, strict=True)]
    two = [(x + y) % eshe.p for x, y in zip(*messages[:2], strict=True)]
    right = sum(x == y for x, y in zip(eshe.decrypt(a, s, eshe.add(parts[:2])), two, strict=True))
    rest = [sum(column) for column in zip(*keys[:2], strict=True)]
    alone = [x - y for x, y in zip(s, rest, strict=True)]
    return Found(
        f"One of three is missing: {right} of {N} coefficients of the sum open right. A key for "
        "the others' sum, less the first, is the missing client's key in "
        f"{sum(x == y for x, y in zip(alone, keys[2], strict=True))}.",
        right < N // 50 and alone == keys[2],
    )


WIDE = 1024


def _esafl_scale() -> Found:
    bits = 47
    coefficients = PaperPacking(COHORT, bits + 1, WIDE).encode(next(vectors(WIDE))).tolist()
    reduced = {(c << LOG_P - bits) % (1 << 16) for c in coefficients}
    largest = (2**16 - 1) * WIDE / 2.0**LOG_P
    return Found(
        f"{WIDE:,} coefficients of {bits} bits, scaled by p = 2^460 and reduced modulo q0 = 2^16: "
        f"all are {max(reduced)}. And whatever is below q0 decodes, divided by p, to "
        f"{largest:.0e} at most.",
        any(coefficients) and reduced == {0} and largest < 1e-100,
    )


def _esafl_shift() -> Found:
    width, fields = 21, 4
    alphas = [11, 22, 33, 0]
    beta = sum(a << width * (fields - i) for i, a in enumerate(alphas, 1))
    mask = (1 << width) - 1
    printed = [beta >> width * (fields + 1 - i) & mask for i in range(1, fields)]
    right = [beta >> width * (fields - i) & mask for i in range(1, fields)]
    return Found(
        f"Fields {', '.join(map(str, alphas))}: shifted by T + 1 - i fields, i = 1 to 3 read "
        f"{', '.join(map(str, printed))}; by T - i, {', '.join(map(str, right))}.",
        right == alphas[:3] and printed != right,
    )


def _esafl_signs() -> Found:
    count = 2 * WIDE
    values, packing = list(vectors(count)), PaperPacking(COHORT, 16, WIDE, offset=False)
    exact = np.sum(values, axis=0)
    total = added([packing.pack(v) for v in values], LOG_P)
    width, mask = packing.width, (1 << packing.width) - 1
    beta = np.array(total[0], object)
    shifts = [width * (packing.fields - i) for i in (1, 2)]
    # Fields as they are, residues added up: what Eq. 10 and Eq. 11 say, but for the shift.
    read = [packing.decode((beta >> shift & mask).astype(np.int64)) for shift in shifts]
    off = float(np.abs(np.concatenate(read) - exact).mean())
    centred = float(np.abs(packing.unpack(total, count, COHORT) - exact).mean())
    return Found(
        f"Nine vectors in [0, 1], decoded without a sign: off by {off:,.0f} on average, where "
        f"sums are {float(exact.mean()):.1f}; centred modulo q0, by {centred:.2f}.",
        off > 10 and centred < 0.05,
    )


def _esafl_packing_error() -> Found:
    packing = PaperPacking(COHORT, 32, WIDE)
    count = 2 * WIDE
    values = list(vectors(count))
    found = []
    for each in (replace(packing, packed=False), packing):
        total = added([each.pack(v) for v in values], LOG_P)
        opened = each.unpack(total, count, COHORT) / COHORT
        found.append(float(np.abs(opened - np.mean(values, axis=0)).mean()))
    return Found(
        f"32 bits, mean of nine: off by {found[0]:.1e} without packing and by {found[1]:.1e} with "
        f"it; Table 4 has {ERRORS[0]:.0e} and {ERRORS[1]:.0e}.",
        max(found) < 1e-7 and abs(found[0] / found[1] - 1) < 0.1,
    )


def _esafl_counts() -> Found:
    written = PaperPacking(COHORT)
    counted = PaperPacking(COHORT, halves=False, zero=False)
    texts, matches = [], []
    for model in TABLE_3:
        by_text = [p.plaintexts(model.values) for p in (replace(written, packed=False), written)]
        by_table = [p.plaintexts(model.values) for p in (replace(counted, packed=False), counted)]
        matches.append(by_table == list(model.ciphertexts))
        texts.append(
            f"{model.name} {by_text[0]} and {by_text[1]} for {by_table[0]} and {by_table[1]}"
        )
    return Found(
        f"Without packing and with it, by the text for the table's: {'; '.join(texts)}.",
        all(matches),
    )

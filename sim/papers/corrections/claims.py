"""What ESAFL's text claims of its keys and its rounds, and does not hold.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 4.2, 5.1, 7.1 and 8.1.2, Fig. 2.
"""

from __future__ import annotations

import math

import numpy as np

from flhe_lab.papers.corrections.esafl import N, message, printed
from flhe_lab.papers.corrections.proof import Fixed, Found, shows


@shows("esafl-density")
def _density() -> Found:
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


@shows("esafl-security")
def _security() -> Found:
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


@shows("esafl-weights")
def _fig_2() -> Found:
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


@shows("esafl-dropout")
def _dropout() -> Found:
    eshe = printed(3)
    a, keys = eshe.polynomial(2, 9), [eshe.key(Fixed(i)) for i in range(3)]
    messages = [message(N, 10 + i) for i in range(3)]
    parts = [
        eshe.encrypt(a, k, m, Fixed(20 + i))
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

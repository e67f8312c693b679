"""Shamir's sharing modulo primes, coefficient by coefficient of a polynomial ring.

The party of rank j has the value at j + 1 of a polynomial whose value at 0 is the secret, modulo each
of several primes above the number of parties. `flhe.math.shamir` shares over Goldilocks, at roots of
unity, and somebody joins shares; these are never joined: each holder weighs its own.

Source: Shamir, 1979.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flhe.math import prime_kernels
from flhe.math.ring import Elements, scaled


def shares(
    secret: Sequence[Elements],
    moduli: Sequence[int],
    count: int,
    terms: Sequence[Sequence[Elements]],
) -> Elements:
    """Values at 1, ..., `count` of polynomials, uint64 (count, limbs, n).

    `secret` has values at 0, uint64 (n,) for each limb, and `moduli` one for each; `terms` are
    coefficients of x, x^2, ...: for each, uint64 (n,) for each limb, uniform.
    """
    out = np.zeros((count, len(moduli), secret[0].size), np.uint64)
    for point in range(1, count + 1):
        for limb, q in enumerate(moduli):
            value = np.zeros_like(secret[limb])
            for term in (*(term[limb] for term in reversed(terms)), secret[limb]):
                value = scaled(value, point, q)
                prime_kernels.add(value, term, np.uint64(q))
            out[point - 1, limb] = value
    return out


def at_zero(rank: int, chosen: Sequence[int], q: int) -> int:
    """What the value of `rank` counts in the value at 0, modulo a prime q: its Lagrange coefficient."""
    above = below = 1
    for other in chosen:
        if other != rank:
            above = above * (other + 1) % q
            below = below * (other - rank) % q
    return above * pow(below, -1, q) % q

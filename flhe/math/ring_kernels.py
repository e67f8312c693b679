"""Compiled number-theoretic transforms over primes and the Goldilocks field.

A transform alternates between two buffers, in one geometry for all stages (Pease, 1968). Forward, a
stage takes elements i and i + n/2 and puts their two results side by side, at 2 i and 2 i + 1; the
inverse reverses this. So all loops are long, and loads and stores are to neighbours. The roots of
stage s repeat with a period of 2**s; tables repeat them up to TILE roots, or as many as
butterflies. Arithmetic is that of `prime_kernels`, where q is None for the Goldilocks field, whose
products `goldilocks_kernels` makes.
"""

from __future__ import annotations

from flhe.math import prime_kernels as prime
from flhe.math.field_kernels import copy, inner, njit, wide

TILE = 128


@inner
def _split(x, y, roots, parts, q):
    """Run one stage forward: residues modulo factors, (n,), into those modulo the halves of each."""
    wide()
    half = x.size // 2
    size = roots.size
    for at in range(0, half, size):
        first = x[at : at + size]
        second = x[half + at : half + at + size]
        both = y[2 * at : 2 * (at + size)]
        for j in range(size):
            a = first[j]
            b = prime.mul(second[j], roots[j], parts[j], q)
            both[2 * j] = prime.plus(a, b, q)
            both[2 * j + 1] = prime.minus(a, b, q)


@inner
def _join(x, y, roots, parts, q):
    """Run one stage back, except for a factor of 2."""
    wide()
    half = x.size // 2
    size = roots.size
    for at in range(0, half, size):
        both = x[2 * at : 2 * (at + size)]
        first = y[at : at + size]
        second = y[half + at : half + at + size]
        for j in range(size):
            a = both[2 * j]
            b = both[2 * j + 1]
            first[j] = prime.plus(a, b, q)
            second[j] = prime.mul(prime.apart(a, b, q), roots[j], parts[j], q)


@njit
def forward(rows, roots, parts, q, space, out):
    """Write transforms of `rows` (count, n), n >= 2, into `out`; roots and quotients by stage.

    `space` is uint64 (2, n), and overwritten.
    """
    n = rows.shape[1]
    half = n // 2
    for r in range(rows.shape[0]):
        x, y = space[0], space[1]
        copy(rows[r], x)
        factors, at = 1, 0
        while factors < n:
            size = min(max(factors, TILE), half)
            _split(x, y, roots[at : at + size], parts[at : at + size], q)
            x, y = y, x
            at += size
            factors *= 2
        copy(x, out[r])


@inner
def _back(x, y, roots, parts, q):
    """Run all stages back, except for a factor of n, from x via y; return the result's array."""
    half = x.size // 2
    factors, at = half, 0
    while factors > 0:
        size = min(max(factors, TILE), half)
        _join(x, y, roots[at : at + size], parts[at : at + size], q)
        x, y = y, x
        at += size
        factors //= 2
    return x


@njit
def products(s, s_quotients, a, roots, parts, q, space, out):
    """Write inverse transforms of a * s: s (n,) with 1 / n in it, a and out (count, n).

    `space` is as in `forward`.
    """
    one, two = space[0], space[1]
    for r in range(a.shape[0]):
        prime.times(a[r], s, s_quotients, q, one)
        copy(_back(one, two, roots, parts, q), out[r])

"""Compiled number-theoretic transforms over primes and the Goldilocks field, and SASH's masks.

A transform goes through two buffers, in one geometry for all stages (Pease, 1968): going forward, a
stage takes elements i and i + n/2 and puts their two results side by side, at 2 i and 2 i + 1; the
inverse goes the same way back. So all loops are long, and what they load and store are neighbours.
Before stage s the low s bits of a place say which of the 2**s factors it belongs to: the roots of a
stage repeat with that period. In the tables they are repeated until there are TILE of them, or as many
as butterflies. Arithmetic is that of `prime_kernels`, where q is None for the Goldilocks field.
"""

from __future__ import annotations

import numpy as np

from flhe.math import prime_kernels as prime
from flhe.math.field_kernels import mul, nearest, njit, plus, rounded, wide

TILE = 128


@njit
def _split(x, y, roots, parts, q):
    """One stage forward: residues modulo factors, (n,), into those modulo the two halves of each."""
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


@njit
def _join(x, y, roots, parts, q):
    """One stage back, but for a factor of 2."""
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
def forward(rows, roots, parts, q, out):
    """Transforms of `rows` (count, n), n >= 2, into `out`; roots and quotients stage by stage."""
    n = rows.shape[1]
    half = n // 2
    one = np.empty(n, np.uint64)
    two = np.empty(n, np.uint64)
    for r in range(rows.shape[0]):
        x, y = one, two
        x[:] = rows[r]
        factors, at = 1, 0
        while factors < n:
            size = min(max(factors, TILE), half)
            _split(x, y, roots[at : at + size], parts[at : at + size], q)
            x, y = y, x
            at += size
            factors *= 2
        out[r] = x


@njit
def _back(x, y, roots, parts, q):
    """All stages back, but for a factor of n, from x by way of y; returns where the result lies."""
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
def products(s, s_quotients, a, roots, parts, q, rounding, out):
    """Inverse transforms of a * s: s (n,) with 1 / n in it, a and out (count, n).

    Rounded to Z_p, p = 2**32, unless `rounding` is None: out is uint32 then.
    """
    n = a.shape[1]
    one = np.empty(n, np.uint64)
    two = np.empty(n, np.uint64)
    for r in range(a.shape[0]):
        prime.times(a[r], s, s_quotients, q, one)
        if rounding is None:
            out[r] = _back(one, two, roots, parts, q)
        else:
            rounded(_back(one, two, roots, parts, q), out[r])


# --- masks ---

PIECE_BITS = 22
RUN = 1024
"""Products of a 32-bit and a 22-bit number that add up in 64 bits."""

_WORD = np.uint64(32)
_LOW_WORD = np.uint64((1 << 32) - 1)
_SHIFT = np.uint64(PIECE_BITS)
_LOW_PIECE = np.uint64((1 << PIECE_BITS) - 1)
_TWO_PIECES = np.uint64(1 << 2 * PIECE_BITS)
_ONE_PIECE = np.uint64(1 << PIECE_BITS)
_ONE_WORD = np.uint64(1 << 32)


@njit
def _inner(row, low, middle, high):
    """Inner product modulo Q of at most RUN elements with others in 22-bit pieces, lowest first."""
    wide()
    low0 = middle0 = high0 = np.uint64(0)
    low1 = middle1 = high1 = np.uint64(0)
    for i in range(row.size):
        a0 = np.uint64(row[i] & _LOW_WORD)
        a1 = np.uint64(row[i] >> _WORD)
        low0 += np.uint64(a0 * low[i])
        low1 += np.uint64(a1 * low[i])
        middle0 += np.uint64(a0 * middle[i])
        middle1 += np.uint64(a1 * middle[i])
        high0 += np.uint64(a0 * high[i])
        high1 += np.uint64(a1 * high[i])
    first = plus(mul(low0, np.uint64(1)), mul(middle0, _ONE_PIECE))
    first = plus(first, mul(high0, _TWO_PIECES))
    second = plus(mul(low1, np.uint64(1)), mul(middle1, _ONE_PIECE))
    second = plus(second, mul(high1, _TWO_PIECES))
    return plus(first, mul(second, _ONE_WORD))


@njit
def lwr_masks(k, a, out):
    """Inner products of k with the rows of a, rounded to Z_p: k (mu,), a (count, mu), out (count,).

    k is cut into pieces once, so that products add up without carries and are reduced once per RUN.
    """
    size = k.size
    pieces = np.empty((3, size), np.uint64)
    for i in range(size):
        pieces[0, i] = np.uint64(k[i] & _LOW_PIECE)
        pieces[1, i] = np.uint64(np.uint64(k[i] >> _SHIFT) & _LOW_PIECE)
        pieces[2, i] = np.uint64(np.uint64(k[i] >> _SHIFT) >> _SHIFT)
    for r in range(out.size):
        total = np.uint64(0)
        for at in range(0, size, RUN):
            end = min(at + RUN, size)
            part = _inner(a[r, at:end], pieces[0, at:end], pieces[1, at:end], pieces[2, at:end])
            total = plus(total, part)
        out[r] = nearest(total)


@njit
def lwr_floor_masks(k, a, out):
    """As `lwr_masks`, but modulo 2**64, and the low 32 bits cut off: the paper's own parameters."""
    wide()
    for r in range(out.size):
        row = a[r]
        total = np.uint64(0)
        for i in range(row.size):
            total += np.uint64(row[i] * k[i])
        out[r] = np.uint32(total >> _WORD)


# --- masks on values ---


@njit
def masked(values, shift, masks, out):
    """Values times 2**shift plus masks, modulo 2**32: signed ones, masks and out uint32; (count,)."""
    wide()
    up = np.uint32(shift)
    for i in range(out.size):
        out[i] = np.uint32(np.uint32(np.uint32(values[i]) << up) + masks[i])

"""Compiled arithmetic modulo an odd prime q < 2**63, and number-theoretic transforms over it.

A product with a constant w needs no division (Shoup): with w' = floor(w 2**64 / q), the number
x w - floor(x w' / 2**64) q lies in [0, 2 q) for every 64-bit x, and modulo 2**64 it takes two low
products and one high one. The high one is made of 32-bit halves, which vector units multiply several at
a time. q < 2**63 makes room for 2 q in a word; corrections are the lesser of two words, one of which
has wrapped around. Elements are canonical (below q) wherever they lie in an array.

Transforms go through two buffers in one geometry for all stages, as in `ring_kernels`. `limb_kernels`
compiles this module in: whoever changes it touches that one too, or numba's cache does not see it.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import njit, wide
from flhe.math.ring_kernels import TILE

_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)


@njit
def high(a, b):
    """High 64 bits of the product of any two 64-bit numbers."""
    a0 = np.uint64(a & _LOW)
    a1 = np.uint64(a >> _HALF)
    b0 = np.uint64(b & _LOW)
    b1 = np.uint64(b >> _HALF)
    one = np.uint64(np.uint64(a0 * b1) + np.uint64(np.uint64(a0 * b0) >> _HALF))
    two = np.uint64(np.uint64(a1 * b0) + np.uint64(one & _LOW))
    top = np.uint64(np.uint64(a1 * b1) + np.uint64(one >> _HALF))
    return np.uint64(top + np.uint64(two >> _HALF))


@njit
def lesser(x, q):
    """Residue of x < 2 q, canonical."""
    y = np.uint64(x - q)
    return min(x, y)


@njit
def plus(a, b, q):
    """Sum modulo q, canonical in and out."""
    return lesser(np.uint64(a + b), q)


@njit
def minus(a, b, q):
    """Difference a - b modulo q, canonical in and out."""
    x = np.uint64(a - b)
    y = np.uint64(x + q)
    return min(x, y)


@njit
def mul(x, w, quotient, q):
    """Product modulo q, canonical, for any 64-bit x and a canonical w; quotient: floor(w 2**64 / q)."""
    product = np.uint64(x * w)
    return lesser(np.uint64(product - np.uint64(high(x, quotient) * q)), q)


@njit
def quotient_of(w, q, unit, unit_quotient, inverse):
    """floor(w 2**64 / q) for a canonical w; unit: 2**64 mod q, inverse: that of q modulo 2**64.

    The remainder is w * unit mod q; w 2**64 less that is a multiple of q, so the division is exact,
    and exact ones are products modulo 2**64.
    """
    remainder = mul(w, unit, unit_quotient, q)
    return np.uint64(np.uint64(np.uint64(0) - remainder) * inverse)


@njit
def quotients(w, q, unit, unit_quotient, inverse, out):
    """`quotient_of` each of w, into out; (count,)."""
    wide()
    for i in range(out.size):
        out[i] = quotient_of(w[i], q, unit, unit_quotient, inverse)


@njit
def add(a, b, q, out):
    """Sums into out; all (count,)."""
    wide()
    for i in range(out.size):
        out[i] = plus(a[i], b[i], q)


@njit
def subtract(a, b, q, out):
    """Differences a - b into out; all (count,)."""
    wide()
    for i in range(out.size):
        out[i] = minus(a[i], b[i], q)


@njit
def times(x, w, w_quotients, q, out):
    """Products into out; all (count,)."""
    wide()
    for i in range(out.size):
        out[i] = mul(x[i], w[i], w_quotients[i], q)


@njit
def scaled(x, factor, quotient, q, out):
    """Products of all with one factor; (count,)."""
    wide()
    for i in range(out.size):
        out[i] = mul(x[i], factor, quotient, q)


@njit
def powers(base, quotient, q, out):
    """1, base, base**2, ... into out (count,)."""
    power = np.uint64(1)
    for i in range(out.size):
        out[i] = power
        power = mul(power, base, quotient, q)


# --- transforms ---


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
            b = mul(second[j], roots[j], parts[j], q)
            both[2 * j] = plus(a, b, q)
            both[2 * j + 1] = minus(a, b, q)


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
            first[j] = plus(a, b, q)
            # Any 64-bit number may be multiplied, so this difference need not be canonical.
            second[j] = mul(np.uint64(np.uint64(a - b) + q), roots[j], parts[j], q)


@njit
def forward(rows, roots, parts, q, out):
    """Transforms of `rows` (count, n), n >= 2, into `out`; `parts` are the quotients of `roots`."""
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
def inverse(rows, roots, parts, scale, scale_quotient, q, out):
    """Inverse of `forward`; `roots` are the inverses in order of use, `scale` is 1 / n."""
    n = rows.shape[1]
    one = np.empty(n, np.uint64)
    two = np.empty(n, np.uint64)
    for r in range(rows.shape[0]):
        scaled(rows[r], scale, scale_quotient, q, one)
        out[r] = _back(one, two, roots, parts, q)


@njit
def products(s, s_quotients, a, roots, parts, q, out):
    """Inverse transforms of a * s: s (n,) with 1 / n in it, a and out (count, n)."""
    n = a.shape[1]
    one = np.empty(n, np.uint64)
    two = np.empty(n, np.uint64)
    for r in range(a.shape[0]):
        times(a[r], s, s_quotients, q, one)
        out[r] = _back(one, two, roots, parts, q)

"""Compiled products in Z_Q[x] / (x**n + 1), Q = 2**64 - 2**32 + 1: from transforms to coefficients.

With values A_k at w**(2 k + 1), w a root of order 2 n, coefficient j is w**-j / n times the sum of
A_k w**(-2 j k). That sum is a cyclic transform. A step combines four of its parts (radix 4,
decimation in time): three products with roots, and one with the root of order 4, which is -2**48.
All steps have one geometry (Pease, 1968): they take elements 4 j to 4 j + 3, and put results at j,
j + n/4, j + n/2 and j + 3 n/4.

AVX2 compares signed words only. So words are held *flipped*, by their top bit, where they are
compared; AVX-512 and NEON lose nothing by it. A *loose* word is any word of a residue's class, a
canonical one is below Q. A sum of both kinds is corrected once.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import nearest, njit, whole, wide

_E = np.uint64((1 << 32) - 1)
"""2**64 modulo Q."""

_ZERO = np.uint64(0)
_HALF = np.uint64(32)
_TOP = np.uint64(1 << 63)
_LAST = np.uint64((1 << 64) - (1 << 32) - (1 << 63))
"""Q - 1, flipped."""


@njit
def _flip(x):
    return np.uint64(x ^ _TOP)


@njit
def _less(x, y):
    """Compare flipped words."""
    return np.int64(x) < np.int64(y)


@njit
def _plus(x, y):
    """Return x + y, flipped and loose; x flipped and loose, y canonical."""
    z = np.uint64(x + y)
    return np.uint64(z + (_E if _less(z, x) else _ZERO))


@njit
def _minus(x, y):
    """Return x - y, flipped and loose; x flipped and loose, y canonical."""
    z = np.uint64(x - y)
    return np.uint64(z - (_E if _less(x, z) else _ZERO))


@njit
def _sum(x, y):
    """Return x + y, canonical; both canonical."""
    beyond = _less(np.uint64(_LAST - y), _flip(x))
    return np.uint64(np.uint64(x + y) + (_E if beyond else _ZERO))


@njit
def _reduced(low, middle, top, e):
    """Return low + 2**64 middle + 2**96 top, canonical; middle and top are below 2**32.

    2**64 is `e` and 2**96 is -1 modulo Q. `e` is an argument, since a compiler that knows it would
    replace the product, one instruction, by three. It is cut to 32 bits here, or else the compiler
    multiplies 64.
    """
    x = _flip(low)
    y = np.uint64(x - top)
    y = np.uint64(y - (_E if _less(x, y) else _ZERO))
    more = np.uint64(middle * np.uint64(e & _E))
    beyond = _less(np.uint64(_LAST - more), y)
    return _flip(np.uint64(np.uint64(y + more) + (_E if beyond else _ZERO)))


@njit
def _mul(x, w, e):
    """Return x w, canonical, for any words."""
    high, low = whole(x, w)
    return _reduced(low, np.uint64(high & _E), np.uint64(high >> _HALF), e)


@njit
def _turned(x, e):
    """Return 2**48 x, canonical, for any word."""
    middle = np.uint64(np.uint64(x >> np.uint64(16)) & _E)
    return _reduced(np.uint64(x << np.uint64(48)), middle, np.uint64(x >> np.uint64(48)), e)


@njit
def _four(x0, x1, x2, x3, e):
    """Combine four parts, canonical but the first, which is flipped and loose; so are results."""
    plus, minus = _plus(x0, x1), _minus(x0, x1)
    same, other = _sum(x2, x3), _turned(_flip(_minus(_flip(x2), x3)), e)
    return _plus(plus, same), _minus(minus, other), _minus(plus, same), _plus(minus, other)


@njit
def _first_two(a, s, y, e):
    """Multiply transforms, and run one radix-2 step, whose roots are 1."""
    wide()
    half = a.size // 2
    y0, y1 = y[:half], y[half:]
    for j in range(half):
        x0, x1 = _flip(_mul(a[2 * j], s[2 * j], e)), _mul(a[2 * j + 1], s[2 * j + 1], e)
        y0[j], y1[j] = _plus(x0, x1), _minus(x0, x1)


@njit
def _first_four(a, s, y, e):
    """Multiply transforms, and run one step, whose roots are 1."""
    wide()
    part = a.size // 4
    y0, y1, y2, y3 = y[:part], y[part : 2 * part], y[2 * part : 3 * part], y[3 * part :]
    for j in range(part):
        x0, x1 = _flip(_mul(a[4 * j], s[4 * j], e)), _mul(a[4 * j + 1], s[4 * j + 1], e)
        x2, x3 = _mul(a[4 * j + 2], s[4 * j + 2], e), _mul(a[4 * j + 3], s[4 * j + 3], e)
        y0[j], y1[j], y2[j], y3[j] = _four(x0, x1, x2, x3, e)


@njit
def _step(x, roots, y, e):
    """Run one step, from x to y."""
    wide()
    part = x.size // 4
    y0, y1, y2, y3 = y[:part], y[part : 2 * part], y[2 * part : 3 * part], y[3 * part :]
    r1, r2, r3 = roots[0], roots[1], roots[2]
    for j in range(part):
        x1 = _mul(_flip(x[4 * j + 1]), r1[j], e)
        x2 = _mul(_flip(x[4 * j + 2]), r2[j], e)
        x3 = _mul(_flip(x[4 * j + 3]), r3[j], e)
        y0[j], y1[j], y2[j], y3[j] = _four(x[4 * j], x1, x2, x3, e)


@njit
def _last(x, twist, e, rounding, out):
    """Multiply sums by powers of w and 1 / n, and round them unless `rounding` is None."""
    wide()
    for j in range(x.size):
        z = _mul(_flip(x[j]), twist[j], e)
        out[j] = z if rounding is None else nearest(z)


@njit
def products(s, a, roots, twist, e, rounding, out):
    """Write the coefficients of a * s: s (n,), a and out (count, n).

    roots (steps, 3, n / 4), twist (n,): see `flhe.math.ring.Steps`; `e`: 2**32 - 1. Rounded to Z_p,
    p = 2**32, unless `rounding` is None: out is uint32 then.
    """
    n, e = s.size, np.uint64(e & _E)
    x, y = np.empty(n, np.uint64), np.empty(n, np.uint64)
    for r in range(a.shape[0]):
        if n >> 2 * roots.shape[0] == 4:
            _first_four(a[r], s, x, e)
        else:
            _first_two(a[r], s, x, e)
        for k in range(roots.shape[0]):
            _step(x, roots[k], y, e)
            x, y = y, x
        _last(x, twist, e, rounding, out[r])

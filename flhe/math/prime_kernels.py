"""Compiled arithmetic modulo an odd prime q < 2**63, and in the Goldilocks field if q is None.

A product with a constant w needs no division (Shoup). With w' = floor(w 2**64 / q), the number x w
- floor(x w' / 2**64) q lies in [0, 2 q) for every 64-bit x. Modulo 2**64 it takes two low products
and one high one. The high one is made of 32-bit halves, which vector units multiply several at a
time. q < 2**63 leaves room for 2 q in a word. A correction chooses between two words, one of which
has wrapped around: its top bit shows that, and AVX2 chooses by that bit alone. Elements in arrays
are canonical (below q).

With None for q, sums, differences and products are those of `field_kernels`, which needs no
quotients: arguments in their place are not read. The choice is made when a kernel is compiled.

`ring_kernels`, `coefficient_kernels`, `residue_kernels` and `shamir_kernels` compile this module in:
after a change here touch those too, or numba's cache goes stale.
"""

from __future__ import annotations

import numpy as np

from flhe.math import field_kernels
from flhe.math.field_kernels import inner, njit, wide


@inner
def high(a, b):
    """Return the high 64 bits of the product of any two 64-bit numbers."""
    return field_kernels.whole(a, b)[0]


@inner
def lesser(x, q):
    """Return the residue of x < 2 q, canonical."""
    y = np.uint64(x - q)
    return x if np.int64(y) < 0 else y


@inner
def plus(a, b, q):
    """Return the sum modulo q, canonical in and out."""
    if q is None:
        return field_kernels.plus(a, b)
    return lesser(np.uint64(a + b), q)


@inner
def minus(a, b, q):
    """Return the difference a - b modulo q, canonical in and out."""
    if q is None:
        return field_kernels.minus(a, b)
    x = np.uint64(a - b)
    return np.uint64(x + q) if np.int64(x) < 0 else x


@inner
def mul(x, w, quotient, q):
    """Return x w modulo q, canonical; any 64-bit x, canonical w, quotient: floor(w 2**64 / q)."""
    if q is None:
        return field_kernels.mul(x, w)
    product = np.uint64(x * w)
    return lesser(np.uint64(product - np.uint64(high(x, quotient) * q)), q)


@inner
def apart(a, b, q):
    """Return a - b modulo q, not canonical, for a product that takes any 64-bit number."""
    return minus(a, b, q) if q is None else np.uint64(np.uint64(a - b) + q)


@njit
def quotients(w, q, unit, unit_quotient, inverse, out):
    """Write floor(w 2**64 / q) of canonical w into out; (count,).

    unit: 2**64 mod q, inverse: that of q modulo 2**64. The remainder is w * unit mod q. w 2**64
    less the remainder is a multiple of q, so the division is exact, and exact ones are products
    modulo 2**64.
    """
    wide()
    for i in range(out.size):
        remainder = mul(w[i], unit, unit_quotient, q)
        out[i] = np.uint64(np.uint64(np.uint64(0) - remainder) * inverse)


# In place: given one array as input and output, a compiler that must expect them to overlap in any
# way makes no vector code.


@njit
def add(x, y, q):
    """Add y to x, canonical; both (count,), in different memory."""
    wide()
    for i in range(x.size):
        x[i] = plus(x[i], y[i], q)


@njit
def subtract(x, y, q):
    """Subtract y from x, canonical; both (count,), in different memory."""
    wide()
    for i in range(x.size):
        x[i] = minus(x[i], y[i], q)


@njit
def times(x, w, w_quotients, q, out):
    """Write products into out; all (count,)."""
    wide()
    for i in range(out.size):
        out[i] = mul(x[i], w[i], w_quotients[i], q)


@njit
def scaled(x, factor, quotient, q, out):
    """Write products of all with one factor into out; (count,)."""
    wide()
    for i in range(out.size):
        out[i] = mul(x[i], factor, quotient, q)


@njit
def add_scaled(x, factor, quotient, q, out):
    """Add products of all with one factor to out; (count,)."""
    wide()
    for i in range(out.size):
        out[i] = plus(out[i], mul(x[i], factor, quotient, q), q)


@njit
def powers(base, quotient, q, out):
    """Write 1, base, base**2, ... into out (count,)."""
    power = np.uint64(1)
    for i in range(out.size):
        out[i] = power
        power = mul(power, base, quotient, q)

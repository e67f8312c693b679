"""Compiled arithmetic in the Goldilocks field: Q = 2**64 - 2**32 + 1.

Field elements in arrays are uint64, canonical (below Q). With e = 2**32 - 1, 2**64 = e and 2**96 =
-1 modulo Q, so a 128-bit product reduces by shifts. Products are made of 32-bit halves, because
vector units multiply several of those at a time. A butterfly takes 0.4 times as long as with
sequential 128-bit products with 512-bit vectors, 0.8 times with 256-bit ones.

Other kernel modules compile these in: after a change here touch them too, or numba's cache goes
stale.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

# Nothing calls kernels from C, and nothing but kernels calls the inner ones: without wrappers for
# such calls a kernel compiles in four fifths of the time.
_how: Any = {"nogil": True, "cache": True, "error_model": "numpy", "no_cfunc_wrapper": True}

njit: Any = numba.njit(**_how)

_bare: Any = {**_how, "no_cpython_wrapper": True}
inner: Any = numba.njit(**_bare)
"""Decorator of functions that only kernels call: one that Python calls ends the process."""

_Q = np.uint64((1 << 64) - (1 << 32) + 1)
_E = np.uint64((1 << 32) - 1)
_WORD = np.uint64(32)


def _wide(_context):
    """Allow 512-bit vectors in this function's loops, if the processor has them.

    LLVM uses 256 bits on Intel's by default; with 512 these loops take half the time. llvmlite
    lists the attributes that it knows, and this is not among them: hence `set.add`.
    """

    def attribute(context, builder, _signature, _arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), attribute


wide: Any = intrinsic(_wide)


def _left(_context, x, _by):
    return x(x, x), lambda _c, builder, _s, arguments: builder.shl(*arguments)


def _right(_context, x, _by):
    return x(x, x), lambda _c, builder, _s, arguments: builder.lshr(*arguments)


# Shifts in the words that they are of, by less than a word. Numba's own widen 32-bit words to 64,
# and LLVM shifts twice as many lanes then.
left: Any = intrinsic(_left)
right: Any = intrinsic(_right)

# In place of `out[:] = x`: numba compiles an assignment to a slice with the texts of its errors,
# which takes seconds.


@inner
def copy(x, out):
    """Copy x (count,) into out (count,)."""
    for i in range(out.size):
        out[i] = x[i]


@inner
def clear(out):
    """Write zeros into out (count,)."""
    for i in range(out.size):
        out[i] = 0


# A sum or a difference that may wrap around: both corrections are a choice between two first
# operands. As a result and its correction, LLVM would take it for checked arithmetic and make no
# vector code.


@inner
def plus(a, b):
    """Return the sum modulo Q, canonical; for any 64-bit a, and b up to Q, if a + b < 2 Q."""
    beyond = a >= np.uint64(_Q - b)
    return np.uint64((np.uint64(a + _E) if beyond else a) + b)


@inner
def minus(a, b):
    """Return the difference a - b modulo Q; canonical in and out."""
    return np.uint64((np.uint64(a - _E) if a < b else a) - b)


@inner
def reduced(high, low):
    """Return the residue of high * 2**64 + low, a product of any two 64-bit numbers; canonical."""
    top = np.uint64(high >> _WORD)
    rest = np.uint64(high & _E)
    x = np.uint64((np.uint64(low - _E) if low < top else low) - top)
    # x is any 64-bit number; e * rest is at most 2**64 - 2**33 + 1, and so their sum below 2 Q
    return plus(x, np.uint64(np.uint64(rest << _WORD) - rest))


@inner
def whole(a, b):
    """Return the high and the low word of the product of any two 64-bit numbers."""
    a0 = np.uint64(a & _E)
    a1 = np.uint64(a >> _WORD)
    b0 = np.uint64(b & _E)
    b1 = np.uint64(b >> _WORD)
    low = np.uint64(a0 * b0)
    one = np.uint64(np.uint64(a0 * b1) + np.uint64(low >> _WORD))
    two = np.uint64(np.uint64(a1 * b0) + np.uint64(one & _E))
    high = np.uint64(np.uint64(a1 * b1) + np.uint64(one >> _WORD))
    high = np.uint64(high + np.uint64(two >> _WORD))
    return high, np.uint64(np.uint64(two << _WORD) | np.uint64(low & _E))


@inner
def mul(a, b):
    """Return the product modulo Q, canonical, for any 64-bit a and b."""
    high, low = whole(a, b)
    return reduced(high, low)


# --- rounding from Z_Q to Z_p, p = 2**32 ---

_HALF = np.uint64(1 << 63)
_UP = np.uint64(1 << 31)


@inner
def nearest(x):
    """Return the integer nearest to x p / Q, modulo p, for a canonical x.

    2**64 / Q is a little more than 1 + 2**-32, so the quotient is x + (x >> 32), rounded at bit 32.
    By the exact remainder, that is wrong for one x only: 2**63, which lies just below a half.
    """
    top = np.uint64(x >> _WORD)
    rest = np.uint64(np.uint64(top + np.uint64(x & _E)) + _UP)
    return np.uint32(np.uint64(top + np.uint64(rest >> _WORD)) - np.uint64(x == _HALF))

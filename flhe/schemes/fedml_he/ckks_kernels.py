"""Compiled loop of `flhe.schemes.fedml_he.ring`: ciphertexts under another mask."""

from __future__ import annotations

from flhe.math.field_kernels import njit, wide
from flhe.math.prime_kernels import minus, mul, plus


@njit
def remask(c0, c1, a, s, s_quotients, q, out):
    """c0 + (c1 - a) s into out, all (count,): what (c0, c1) encrypts, under the mask a instead."""
    wide()
    for i in range(out.size):
        out[i] = plus(c0[i], mul(minus(c1[i], a[i], q), s[i], s_quotients[i], q), q)

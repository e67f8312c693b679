"""Compiled loops of Shamir's sharing: interpolation, and products of matrices over the field.

As in `field_kernels`, elements are canonical uint64.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import clear, inner, minus, mul, njit, plus, wide
from flhe.math.prime_kernels import add_scaled, times


@njit
def vanishing(points, out):
    """Write coefficients of the product of (x - point), lowest first: out (count + 1,)."""
    clear(out)
    out[0] = np.uint64(1)
    for i in range(points.size):
        point = points[i]
        for j in range(i + 1, 0, -1):
            out[j] = minus(out[j - 1], mul(point, out[j]))
        out[0] = minus(np.uint64(0), mul(point, out[0]))


@inner
def _next_derivative(value, points, coefficient):
    wide()
    for i in range(points.size):
        value[i] = plus(mul(value[i], points[i]), coefficient)


@inner
def _next_quotient(before, coefficient, inverses, out):
    """Write (before - coefficient) / point, at all points."""
    wide()
    for i in range(out.size):
        out[i] = mul(minus(before[i], coefficient), inverses[i])


@njit
def derivative(points, vanishing, out):
    """Write V'(point) at all points: out (count,)."""
    clear(out)
    for j in range(points.size, 0, -1):
        _next_derivative(out, points, mul(np.uint64(j), vanishing[j]))


@njit
def lagrange(vanishing, weights, inverses, before, out):
    """Write a polynomial's lowest coefficients as combinations of its values: out (rows, count).

    With V the product of (x - x_i), Lagrange's polynomial of point i is V / (x - x_i) / V'(x_i). From
    the lowest coefficient up, that quotient is q_j = (q_(j-1) - V_j) / x_i.

    `weights` are 1 / V' at all points, `inverses` those of the points (count,), which are distinct and
    not zero; at most `count` rows. `before` (count,) is zero.
    """
    for j in range(out.shape[0]):
        _next_quotient(before, vanishing[j], inverses, out[j])
        before = out[j]
    for j in range(out.shape[0]):
        times(out[j], weights, weights, None, out[j])


@njit
def completion(vanishing, weights, inverses, before, scales, out):
    """Write a polynomial's coefficients as combinations of its values, each scaled: (count, count)."""
    lagrange(vanishing, weights, inverses, before, out)
    for j in range(out.shape[0]):
        times(out[j], scales, scales, None, out[j])


@njit
def syndromes(points, terms, out):
    """Write sums of term x**j over all points, for j from 0 on: out (rows,); overwrites `terms`.

    Of terms value / V'(x), they are the highest coefficients of f, x f, x**2 f, ... modulo V, f being
    the polynomial with these values: all zero for a degree below count - rows.
    """
    for j in range(out.size):
        total = np.uint64(0)
        for i in range(terms.size):
            total = plus(total, terms[i])
        out[j] = total
        times(terms, points, points, None, terms)


@njit
def product(a, b, out):
    """Write the product of matrices, a (rows, inner) and b (inner, columns), into `out`."""
    for r in range(out.shape[0]):
        clear(out[r])
        for i in range(b.shape[0]):
            add_scaled(b[i], a[r, i], a[r, i], None, out[r])

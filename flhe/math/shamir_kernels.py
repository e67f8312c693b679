"""Compiled loops of Shamir's sharing: interpolation, and products of matrices over the field.

As in `field_kernels`, elements are canonical uint64.
"""

from __future__ import annotations

import numpy as np

from flhe.math.field_kernels import minus, mul, njit, plus, wide
from flhe.math.prime_kernels import add_scaled, times

_ORDER_LESS_TWO = np.uint64((1 << 64) - (1 << 32) - 1)


@njit
def _inverted(a):
    power = a
    out = np.uint64(1)
    left = _ORDER_LESS_TWO
    while left != np.uint64(0):
        if left & np.uint64(1):
            out = mul(out, power)
        power = mul(power, power)
        left = np.uint64(left >> np.uint64(1))
    return out


@njit
def _vanishing(points):
    """Return coefficients of the product of (x - point), lowest first: (count + 1,)."""
    count = points.size
    out = np.zeros(count + 1, np.uint64)
    out[0] = np.uint64(1)
    for i in range(count):
        point = points[i]
        for j in range(i + 1, 0, -1):
            out[j] = minus(out[j - 1], mul(point, out[j]))
        out[0] = minus(np.uint64(0), mul(point, out[0]))
    return out


@njit
def _next_derivative(value, points, coefficient):
    wide()
    for i in range(points.size):
        value[i] = plus(mul(value[i], points[i]), coefficient)


@njit
def _next_quotient(before, coefficient, inverses, out):
    """Write (before - coefficient) / point, at all points."""
    wide()
    for i in range(out.size):
        out[i] = mul(minus(before[i], coefficient), inverses[i])


@njit
def _weights(points, vanishing):
    """Return 1 / V'(point) at all points: (count,)."""
    weights = np.zeros(points.size, np.uint64)
    for j in range(points.size, 0, -1):
        _next_derivative(weights, points, mul(np.uint64(j), vanishing[j]))
    for i in range(points.size):
        weights[i] = _inverted(weights[i])
    return weights


@njit
def lagrange(points, inverses, out):
    """Write a polynomial's lowest coefficients as combinations of its values: out (rows, count).

    With V the product of (x - x_i), Lagrange's polynomial of point i is V / (x - x_i) / V'(x_i). From
    the lowest coefficient up, that quotient is q_j = (q_(j-1) - V_j) / x_i.

    `points` (count,) are distinct and not zero, `inverses` theirs; at most `count` rows.
    """
    vanishing = _vanishing(points)
    weights = _weights(points, vanishing)
    before = np.zeros(points.size, np.uint64)
    for j in range(out.shape[0]):
        _next_quotient(before, vanishing[j], inverses, out[j])
        before = out[j]
    for j in range(out.shape[0]):
        times(out[j], weights, weights, None, out[j])


@njit
def completion(points, inverses, scales, out):
    """Write a polynomial's coefficients as combinations of its values, each scaled: (count, count)."""
    lagrange(points, inverses, out)
    for j in range(out.shape[0]):
        times(out[j], scales, scales, None, out[j])


@njit
def syndromes(points, values, out):
    """Write sums of value x**j / V'(x) over all points, for j from 0 on: out (rows,).

    They are the highest coefficients of f, x f, x**2 f, ... modulo V, f being the polynomial with
    these values: all zero for a degree below count - rows.
    """
    terms = _weights(points, _vanishing(points))
    times(terms, values, values, None, terms)
    for j in range(out.size):
        total = np.uint64(0)
        for term in terms:
            total = plus(total, term)
        out[j] = total
        times(terms, points, points, None, terms)


@njit
def product(a, b, out):
    """Write the product of matrices, a (rows, inner) and b (inner, columns), into `out`."""
    for r in range(out.shape[0]):
        out[r] = np.uint64(0)
        for i in range(b.shape[0]):
            add_scaled(b[i], a[r, i], a[r, i], None, out[r])

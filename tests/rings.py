"""What tests ask of rings, and schemes do not: inverse transforms and products of polynomials."""

from __future__ import annotations

import numpy as np

from flhe.math.ring import Elements, PrimeRing


def inverse(on: PrimeRing, x_hat: Elements) -> Elements:
    """Polynomials whose transforms are `x_hat`, uint64 (..., n): their products with 1."""
    one = np.zeros(on.n, np.uint64)
    one[0] = 1
    return on.products(on.forward(one), x_hat.reshape(-1, on.n)).reshape(x_hat.shape)


def multiply(on: PrimeRing, a: Elements, b: Elements) -> Elements:
    """Products modulo x**n + 1, uint64 (n,)."""
    return on.products(on.forward(a), on.forward(b)[None])[0]

"""Field, ring and masks: against Python's integers, whole products by way of one long integer."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.math import field_kernels, prime_kernels, ring
from flhe.math.ring import Q, Ring
from flhe.math.ring_arrays import root
from tests.reference.field import P, at, nearest

EDGES = [0, 1, 2, P - 2, P - 1, P, P + 1, Q // 2, Q // 2 + 1, 2**63 - 1, 2**63, 2**63 + 1]
EDGES += [Q - x for x in (P + 1, P, P - 1, 2, 1)]
ELEMENTS = st.one_of(st.sampled_from(EDGES), st.integers(0, Q - 1))


def array(numbers: list[int]) -> NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def polynomial(n: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(Q) for _ in range(n)]


# --- the field ---


@settings(deadline=None)
@given(st.lists(st.tuples(ELEMENTS, ELEMENTS), max_size=70))
def test_operations_are_those_of_integers(pairs: list[tuple[int, int]]) -> None:
    a, b = array([x for x, _ in pairs]), array([y for _, y in pairs])
    assert ring.add(a, b).tolist() == [(x + y) % Q for x, y in pairs]
    assert ring.subtract(a, b).tolist() == [(x - y) % Q for x, y in pairs]
    product = np.empty_like(a)
    prime_kernels.times(a, b, b, None, product)
    assert product.tolist() == [x * y % Q for x, y in pairs]


def test_powers_and_roots() -> None:
    assert ring.powers(7, 100).tolist() == [pow(7, i, Q) for i in range(100)]
    for bits in range(33):
        w = root(Q, 1 << bits)
        assert pow(w, 1 << bits, Q) == 1
        assert bits == 0 or pow(w, 1 << (bits - 1), Q) == Q - 1


# --- rounding ---


@settings(deadline=None)
@given(st.lists(ELEMENTS, min_size=1, max_size=70))
def test_rounding_is_the_definition(xs: list[int]) -> None:
    out = np.empty(len(xs), np.uint32)
    field_kernels.rounded(array(xs), out)
    assert out.tolist() == [round(Fraction(x * P, Q)) % P for x in xs]


# --- transforms ---


@pytest.mark.parametrize("n", [1, 2, 4, 8, 128, 1024, 2**16])
def test_evaluate_is_in_natural_order(n: int) -> None:
    x = polynomial(2 * n, 7)
    values = ring.evaluate(array(x).reshape(2, n))
    w = root(Q, n)
    for row, made in zip((x[:n], x[n:]), values.tolist(), strict=True):
        for i in {0, 1, 2, 3, n // 2, n - 1} & set(range(n)):
            assert made[i] == at(row, pow(w, i, Q))


def test_arrays_that_are_refused() -> None:
    x = array([1] * 8)
    rows = x.reshape(1, 8)
    with pytest.raises(errors.ConfigError, match="must be a power of two up to"):
        ring.evaluate(np.zeros(1 << 17, np.uint64))
    for k, a, lanes in [
        (x, x, np.uint32([0])),
        (x[:7], rows, np.uint32([0])),
        (x, rows, np.uint32([0, 0])),
        (x, rows, np.uint64([0])),
        (x.astype(np.int64), rows, np.uint32([0])),
        (rows, rows, np.uint32([0])),
    ]:
        with pytest.raises(errors.ConfigError, match="lwr_masks: got"):
            ring.lwr_masks(k, a, lanes)
    for n in (0, 1, 3, 1 << 14):
        with pytest.raises(errors.ConfigError, match="2 to 8192"):
            Ring(n)
    with pytest.raises(errors.RangeError, match="are uint64"):
        ring.check(x.astype(np.int64))
    with pytest.raises(errors.RangeError, match="is not below"):
        ring.check(array([Q]))


# --- masks ---

KEY = bytes(range(32))


@pytest.mark.parametrize("mu", [1, 7, 64, 736, 1023, 1024, 1025, 2500])
def test_matrix_masks_are_the_definition(mu: int) -> None:
    """Extremes too: 1024 products of the largest must not run over."""
    a, k = array(polynomial(5 * mu, 11)).reshape(5, mu), array(polynomial(mu, 12))
    a[0], a[1] = Q - 1, P - 1
    for key in (k, np.full(mu, Q - 1, np.uint64), np.full(mu, (1 << 44) - 1, np.uint64)):
        sums = [sum(x * y for x, y in zip(row, key.tolist(), strict=True)) for row in a.tolist()]
        assert ring.lwr_masks(key, a).tolist() == [nearest(x % Q) for x in sums]
        assert ring.lwr_masks(key, a, floor=True).tolist() == [x % 2**64 // P for x in sums]

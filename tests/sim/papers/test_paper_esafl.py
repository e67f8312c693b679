"""The paper's own ESHE and its packing: they do what they say; what is wrong with them is elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe_lab.papers.esafl import Poly, multiply, times_ones
from flhe_lab.papers.packing import LOG_P, PaperPacking, added


def schoolbook(x: Poly, y: Poly) -> Poly:
    n = len(x)
    out = [0] * n
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            out[(i + j) % n] += a * b if i + j < n else -a * b
    return out


def polynomials(n: int) -> st.SearchStrategy[Poly]:
    return st.lists(st.integers(-(2**200), 2**200), min_size=n, max_size=n)


# --- scheme ---


@given(st.sampled_from([1, 2, 4, 16]).flatmap(lambda n: st.tuples(polynomials(n), polynomials(n))))
def test_products_are_the_schoolbooks(pair: tuple[Poly, Poly]) -> None:
    x, y = pair
    assert multiply(x, y) == schoolbook(x, y)
    assert times_ones(x) == schoolbook(x, [1] * len(x))


# --- packing ---


@st.composite
def packings(draw: st.DrawFn) -> PaperPacking:
    cohort = draw(st.integers(1, 40))
    return PaperPacking(
        cohort,
        draw(st.integers(12, 40)),
        n=draw(st.sampled_from([4, 8, 64, 512])),
        halves=draw(st.booleans()),
        zero=draw(st.booleans()),
        offset=draw(st.booleans()),
    )


def worst_case(packing: PaperPacking, senders: int) -> float:
    """Half a unit of every coefficient, of each sender, and what complex128 loses."""
    return senders * packing.n / 2 / packing.scale + 1e-9


@given(packings(), st.integers(1, 2000), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=40, deadline=None)
def test_sums_of_packed_vectors_are_packed_sums(
    packing: PaperPacking, length: int, start: int, data: Any
) -> None:
    senders = data.draw(st.integers(1, packing.cohort))
    rng = np.random.default_rng(start)
    vectors = rng.uniform(-1, 1, (senders, length))
    if start % 3 == 0:  # the largest coefficients that there are
        vectors = np.ones((senders, length)) * (-1) ** start
    total = added(map(packing.pack, vectors), LOG_P)
    assert len(total) == packing.plaintexts(length)
    found = packing.unpack(total, length, senders)
    assert found.shape == (length,)
    assert np.abs(found - vectors.sum(axis=0)).max() <= worst_case(packing, senders)


@pytest.mark.parametrize("halves", [True, False])
def test_values_are_those_at_the_roots(halves: bool) -> None:
    """CKKS's embedding, by evaluating the polynomial itself."""
    packing = PaperPacking(3, 30, n=16, halves=halves)
    values = np.random.default_rng(1).uniform(-1, 1, packing.values)
    exponents = np.array([[pow(5, j, 32) * k for k in range(16)] for j in range(8)])
    z = np.exp(1j * np.pi / 16 * exponents) @ packing.encode(values) / packing.scale
    expected = values[::2] + 1j * values[1::2] if halves else values
    np.testing.assert_allclose(z, expected, atol=16 / packing.scale)

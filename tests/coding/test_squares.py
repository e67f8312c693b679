"""Squares: mean squares as exact integers, and sums that their senders can have."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding import squares
from flhe.coding.squares import LIMIT, MAX_SENDERS, PART, Layers, Tally
from flhe.errors import ProtocolError, RangeError
from flhe.math.prg import PIECE

UNIT = Fraction(1, 2**72)
MOST = math.nextafter(LIMIT, 0)


def extras(*mean_squares: float) -> np.ndarray:
    return squares.to_extras(np.array(mean_squares, np.float64))


@given(st.lists(st.floats(0, MOST), max_size=6))
def test_rounds_down_by_less_than_a_unit(mean_squares: list[float]) -> None:
    parts = extras(*mean_squares).tolist()
    assert len(parts) == 2 * len(mean_squares)
    assert all(0 <= p < PART for p in parts)
    half = len(mean_squares)
    for m, high, low in zip(mean_squares, parts[:half], parts[half:], strict=True):
        exact = high * Fraction(1, 2**20) + low * UNIT
        assert 0 <= Fraction(m) - exact < UNIT


@given(st.lists(st.lists(st.floats(0, MOST), min_size=3, max_size=3), min_size=1, max_size=20))
def test_the_mean_is_rounded_once(senders: list[list[float]]) -> None:
    sums = np.sum([extras(*m) for m in senders], axis=0)
    for layer, mean in enumerate(squares.mean(sums, len(senders), 3)):
        total = sum(Fraction(m[layer]) // UNIT for m in senders)
        assert mean == float(total * UNIT / len(senders))


@pytest.mark.parametrize("bad", [-1e-300, LIMIT, 1e300, math.inf, math.nan])
def test_what_has_no_place_is_refused_and_not_told(bad: float) -> None:
    with pytest.raises(RangeError, match="no mean square below") as caught:
        extras(1.0, bad)
    assert set(re.findall(r"\d+", str(caught.value))) == {"2", "32"}


@pytest.mark.parametrize(
    ("count", "sums"),
    [
        (0, [0, 0]),
        *((3, sums) for sums in ([-1, 0], [0, -1], [3 * PART - 2, 0], [0, 3 * PART - 2])),
        *((3, [0] * size) for size in (0, 1, 3, 4)),
    ],
)
def test_sums_that_senders_cannot_have(count: int, sums: list[int]) -> None:
    assert squares.mean(np.array([3 * PART - 3] * 2), 3, 1) == [pytest.approx(LIMIT)]
    assert 1024 <= MAX_SENDERS < (1 << 63) / (PART - 1)
    most = extras(MOST, 0.0) * np.int64(MAX_SENDERS)
    assert squares.mean(most, MAX_SENDERS, 2) == [MOST, 0.0]
    with pytest.raises(ProtocolError, match=f"{count} senders cannot reach"):
        squares.mean(np.array(sums, np.int64), count, 1)


BOUNDS = (0, 3, 3, 4, PIECE + 5, 2 * PIECE + 9, 2 * PIECE + 9)


@pytest.mark.parametrize("size", [1000, PIECE - 1, PIECE, PIECE + 1, 10**7])
@pytest.mark.parametrize("bounds", [BOUNDS, (0,), (0, 0, 0)], ids=len)
def test_a_vector_in_parts(bounds: tuple[int, ...], size: int) -> None:
    x = np.random.default_rng(1).normal(0, 3, bounds[-1]).astype(np.float32)
    tally = Tally(Layers(bounds).edges())
    for at in range(0, max(x.size, 1), size):
        tally.add(x[at : at + size])
    got = squares.mean(tally.extras(), 1, len(bounds) - 1)
    pairs = itertools.pairwise(bounds)
    wanted = [float(np.mean(x[a:b].astype(np.float64) ** 2)) if a < b else 0.0 for a, b in pairs]
    assert got == pytest.approx(wanted, rel=1e-12)
    assert all(g == 0 for g, w in zip(got, wanted, strict=True) if not w)


def test_layers_of_what_was_chosen() -> None:
    layers = Layers((0, 3, 3, 10, 12, 12), alphas=(1.0, 5.0, 2.0, 2.0, 7.0))
    assert layers.edges().tolist() == list(layers.bounds)
    assert layers.segments() == ((0, 3, 1.0), (3, 12, 2.0))
    coords = np.array([1, 2, 3, 9, 11], np.uint32)
    assert layers.edges(coords).tolist() == [0, 2, 2, 4, 5, 5]
    assert layers.segments(coords) == ((0, 2, 1.0), (2, 5, 2.0))
    assert layers.segments(coords[2:]) == ((0, 3, 2.0),)
    assert layers.segments(coords[:0]) == ()

"""Permutation: the definition in plain Python, bijections, uniform images, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe import errors
from flhe.math.permutation import MAX_LENGTH, SMALL, Permutation, uniform
from flhe.math.prg import AesCtr
from tests.reference.permutation import below

KEY = bytes(range(32))
LARGE = [SMALL, SMALL + 1, 65_792, 65_793, 70_000, 90_000, 90_001, 99_999]
"""Around 2**16, just above a (a - 1), where a row is nearly empty, and squares."""


def key(i: int) -> bytes:
    return i.to_bytes(32, "big")


# --- what it promises ---


@pytest.mark.parametrize("length", [*range(1, 201, 3), SMALL - 1, *LARGE, 1_000_003])
def test_bijections(length: int) -> None:
    permutation = Permutation(KEY, length)
    every = np.arange(length, dtype=np.uint32)
    images = permutation.forward(every)
    assert np.array_equal(np.sort(images), every)
    assert np.array_equal(permutation.inverse(images), every)
    assert images.dtype == permutation.inverse(images).dtype == np.uint32


@given(st.integers(1, 2**18), st.binary(min_size=32, max_size=32), st.data())
@settings(max_examples=60, deadline=None)
def test_each_coordinate_goes_its_own_way(length: int, secret: bytes, data: st.DataObject) -> None:
    """An image depends on nothing that stands beside it, and the inverse undoes it."""
    coords = data.draw(st.lists(st.integers(0, length - 1), max_size=40))
    permutation = Permutation(secret, length)
    images = permutation.forward(np.array(coords, np.uint32))
    assert permutation.inverse(images).tolist() == coords
    alone = [int(permutation.forward(np.array([c], np.uint32))[0]) for c in coords]
    assert images.tolist() == alone


def chi_square(counts: np.ndarray) -> float:
    """Standard deviations from the mean of a chi-square with so many cells."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("length", [60_000, 70_000])
def test_images_are_uniform_over_keys_and_over_a_run(length: int) -> None:
    coords = np.array([0, 1, length // 2, length - 1], np.uint32)
    images = np.array([Permutation(key(i), length).forward(coords) for i in range(600)])
    distances = (images[:, 1].astype(np.int64) - images[:, 0]) % length
    for column in (*images.T, distances):
        cells = np.bincount(column // (length // 50 + 1), minlength=50)
        assert abs(chi_square(cells)) < 5
    run = Permutation(KEY, length).forward(np.arange(5000, dtype=np.uint32))
    assert abs(chi_square(np.bincount(run // (length // 100 + 1), minlength=100))) < 5
    assert abs(chi_square(np.bincount(run % 64, minlength=64))) < 5
    # Neighbours do not stay neighbours.
    assert np.count_nonzero(np.abs(np.diff(run.astype(np.int64))) < length // 1000) < 40


# --- exact uniform values ---


class Words:
    """A stream that is written down."""

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def into(self, out: np.ndarray, nbytes: int) -> None:
        taken, self._words = self._words[: nbytes // 4], self._words[nbytes // 4 :]
        out[:nbytes] = np.array(taken, np.uint32).view(np.uint8)


def test_words_beyond_the_largest_multiple_are_drawn_again() -> None:
    bounds = np.array([10, 2**31 + 1, 1, 3], np.uint64)
    last = 2**32 - 1
    words = [2**32 - 6, 2**31 + 1, last, last, 2**32 - 7, last, 7, 2**31]
    drawn = uniform(Words(words), bounds)
    assert drawn.tolist() == [(2**32 - 7) % 10, 2**31, 0, 7 % 3]


@given(st.lists(st.integers(1, 2**32), min_size=1, max_size=50), st.integers(0, 9))
def test_uniform_values_are_the_definition(bounds: list[int], stream: int) -> None:
    drawn = uniform(AesCtr().stream(KEY, stream), np.array(bounds, np.uint64))
    assert drawn.tolist() == below(KEY, stream, bounds)[0]


# --- what it refuses ---


@pytest.mark.parametrize("length", [0, 5, SMALL, 1_000_000])
def test_coordinates_beyond_the_length_are_refused(length: int) -> None:
    permutation = Permutation(KEY, length)
    for beyond in (length, 2**32 - 1):
        for method in (permutation.forward, permutation.inverse):
            with pytest.raises(errors.RangeError, match="not below"):
                method(np.array([0, beyond], np.uint32))
            with pytest.raises(errors.RangeError, match="uint32"):
                method(np.array([0, -1], np.int64))
    assert permutation.forward(np.empty(0, np.uint32)).size == 0


@pytest.mark.parametrize(
    ("secret", "length", "says"),
    [
        *((secret, 5, "32 bytes") for secret in (b"", bytes(31), bytes(33), "0" * 32, None)),
        *((KEY, length, "length") for length in (-1, MAX_LENGTH + 1)),
    ],
)
def test_what_makes_no_permutation(secret: object, length: int, says: str) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        Permutation(secret, length)  # type: ignore[arg-type]


def test_it_does_not_show_its_key() -> None:
    for length in (10, SMALL):
        shown = repr(Permutation(KEY, length))
        assert shown == f"Permutation(key=<32 bytes>, length={length})"

"""Permutation: the definition in plain Python, bijections, uniform images, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from flhe import errors
from flhe.math.permutation import SMALL, Permutation, uniform

KEY = bytes(range(32))
LARGE = [SMALL, SMALL + 1, 65_792, 65_793, 70_000, 90_000, 90_001, 99_999]
"""Around 2**16, just above a (a - 1), where a row is nearly empty, and squares."""


# --- what it promises ---


@pytest.mark.parametrize("length", [*range(1, 201, 3), SMALL - 1, *LARGE, 1_000_003])
def test_bijections(length: int) -> None:
    permutation = Permutation(KEY, length)
    every = np.arange(length, dtype=np.uint32)
    images = permutation.forward(every)
    assert np.array_equal(np.sort(images), every)
    assert np.array_equal(permutation.inverse(images), every)
    assert images.dtype == permutation.inverse(images).dtype == np.uint32


# --- exact uniform values ---


class Words:
    """A stream that is written down."""

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def into(self, out: np.ndarray, nbytes: int) -> None:
        taken, self._words = self._words[: nbytes // 4], self._words[nbytes // 4 :]
        out[:nbytes] = np.array(taken, np.uint32).view(np.uint8)


def test_words_beyond_the_largest_multiple_are_drawn_again() -> None:
    bounds = np.array([10, 2**31 + 1, 1, 3], np.uint32)
    last = 2**32 - 1
    words = [2**32 - 6, 2**31 + 1, last, last, 2**32 - 7, last, 7, 2**31]
    drawn = uniform(Words(words), bounds)
    assert drawn.tolist() == [(2**32 - 7) % 10, 2**31, 0, 7 % 3]


# --- what it refuses ---


def test_what_is_no_key_and_no_coordinates() -> None:
    for secret in ("0" * 32, None):
        with pytest.raises(errors.ConfigError, match="32 bytes"):
            Permutation(secret, 5)  # type: ignore[arg-type]
    for length in (5, SMALL):
        for method in (Permutation(KEY, length).forward, Permutation(KEY, length).inverse):
            with pytest.raises(errors.RangeError, match="uint32"):
                method(np.array([0, -1], np.int64))


def test_it_does_not_show_its_key() -> None:
    for length in (10, SMALL):
        shown = repr(Permutation(KEY, length))
        assert shown == f"Permutation(key=<32 bytes>, length={length})"

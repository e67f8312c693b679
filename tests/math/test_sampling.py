"""Discrete Gaussians: the table against integers, words at its borders, distribution, slices."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.math import sampling
from tests.reference.gaussian import WORDS, probabilities, sample, thresholds
from tests.reference.wire import word
from tests.scripted import scripted

KEY = bytes(range(32))


# --- the table ---


def test_distance_is_what_the_documentation_says() -> None:
    ideal = probabilities("4.53")
    borders = [0, *sampling.thresholds(), WORDS]
    made = [Fraction(b - a, WORDS) for a, b in pairwise(borders)]
    made += [Fraction(0)] * (len(ideal) - len(made))
    distance = sum(abs(x - y) for x, y in zip(made, ideal, strict=True)) / 2
    assert round(math.log2(distance), 1) == -59.8
    assert round(math.log2(sum(ideal[41:])), 1) == -61.4


def test_words_at_every_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just below, at and above each entry, with both signs; no word is beyond the bound."""
    entries = sampling.thresholds()
    at = [0, 1, WORDS - 1, *(t + d for t in entries for d in (-1, 0, 1) if t + d < WORDS)]
    script = [2 * x + sign for x in at for sign in (0, 1)]
    out = np.empty(len(script), np.int8)
    scripted(monkeypatch, lambda _, i: script[i])
    sampling.fill(KEY, 0, out)
    assert out.tolist() == [sample(drawn, entries) for drawn in script]
    assert out[4:6].tolist() == [40, -40]


# --- where samples come from ---


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**40), st.integers(0, 70))
def test_sample_i_is_made_of_word_i(start: int, count: int) -> None:
    out = np.empty(count, np.int8)
    sampling.fill(KEY, start, out)
    assert out.tolist() == [sample(word(KEY, 0, start + i), thresholds()) for i in range(count)]


def test_the_key_is_fresh_unless_it_is_given() -> None:
    fixed = sampling.draw(500, lambda size: KEY[:size])
    assert fixed.dtype == np.int8
    assert np.array_equal(fixed, sampling.draw(500, lambda size: KEY[:size]))
    one, two = sampling.draw(500), sampling.draw(500)
    assert not np.array_equal(one, two)
    assert sampling.draw(0).size == 0
    with pytest.raises(ConfigError, match="gave 16 bytes, 32 were asked for"):
        sampling.draw(4, lambda size: bytes(16))

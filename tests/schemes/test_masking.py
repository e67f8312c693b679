"""Counting masks: against brute force, against every subset, against the scheme itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.schemes.flashe.masking import (
    Bitmap,
    Mode,
    cheaper,
    expected,
    for_dropout,
    for_supports,
)
from flhe.schemes.flashe.scheme import Flashe

MODES: tuple[Mode, Mode] = ("single", "double")
OWN = {"single": 1, "double": 2}

Supports = dict[int, set[int]]
"""Rank -> the coordinates that it sends."""


def words(support: Iterable[int], length: int) -> NDArray[np.uint64]:
    found = [0] * -(-length // 64)
    for d in support:
        found[d // 64] |= 1 << d % 64
    return np.array(found, np.uint64)


def bitmaps(supports: Supports, length: int) -> list[Bitmap]:
    return [(rank, words(supports[rank], length)) for rank in sorted(supports)]


def streams(mode: Mode, senders: Iterable[int]) -> int:
    """What the scheme itself generates for one value that `senders` sent."""
    return sum(map(len, Flashe(masking=mode).adder(1024).mask_terms(senders)))


def brute(mode: Mode, supports: Supports, length: int, extras: int, readers: int) -> int:
    total = 0
    for d in range(length):
        senders = [rank for rank in supports if d in supports[rank]]
        total += sum(streams(mode, (rank,)) for rank in senders)
        total += readers * streams(mode, senders)
    total += extras * sum(streams(mode, (rank,)) for rank in supports)
    return total + readers * extras * streams(mode, supports)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Supports, int]:
    length = draw(st.integers(1, 150))
    coordinates = st.sets(st.integers(0, length - 1))
    ranks = st.integers(0, 12) | st.sampled_from([62, 63, 64, 1023])
    return draw(st.dictionaries(ranks, coordinates, max_size=8)), length


@given(rounds(), st.integers(0, 5), st.integers(0, 10))
def test_counts_are_those_of_the_scheme_coordinate_by_coordinate(
    drawn: tuple[Supports, int], extras: int, readers: int
) -> None:
    supports, length = drawn
    maps = bitmaps(supports, length)
    want = {mode: brute(mode, supports, length, extras, readers) for mode in MODES}
    mode, single, double = for_supports(maps, extras, readers)
    assert (single, double) == (want["single"], want["double"])
    assert want[mode] == min(want.values())


@pytest.mark.parametrize("members", range(2, 9))
def test_expected_is_the_mean_over_all_survivors_of_one_number(members: int) -> None:
    for survivors in range(1, members + 1):
        sets = list(itertools.combinations(range(members), survivors))
        for mode in MODES:
            mean = sum(OWN[mode] + streams(mode, chosen) for chosen in sets) / len(sets)
            assert expected(mode, members, 1 - survivors / members) == pytest.approx(mean)


@pytest.mark.parametrize("members", [20, 40, 80])
def test_the_crossover_lies_where_the_paper_says(members: int) -> None:
    low, high = 0.0, 1.0
    assert for_dropout(members, low) == "double"
    assert for_dropout(members, high) == "single"
    while high - low > 1e-9:
        middle = (low + high) / 2
        if for_dropout(members, middle) == "double":
            low = middle
        else:
            high = middle
    assert 0.3 < low < 0.5
    root = (3 * members - 2 - math.sqrt(members**2 + 12 * members + 4)) / (4 * members)
    assert low == pytest.approx(root)


def test_the_cheaper_one() -> None:
    assert cheaper(1, 2) == "single"
    assert cheaper(2, 1) == "double"
    assert cheaper(2, 2) == "double"
    assert for_dropout(3, 0.0) == "double"  # both 4
    assert for_dropout(20, 0.5) == "single"  # 11, not 13


@pytest.mark.parametrize(
    ("mode", "members", "dropout", "says"),
    [
        ("double", 1, 0.0, "members=1"),
        ("double", 5, -0.1, "dropout=-0.1"),
        ("single", 5, 1.1, r"dropout=1\.1"),
        ("single", 5, math.nan, "dropout=nan"),
    ],
)
def test_rounds_that_cannot_be(mode: Mode, members: int, dropout: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        expected(mode, members, dropout)

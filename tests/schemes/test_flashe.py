"""FLASHE beyond the laws: what masks cost, what is prepared, modes that share none, sparse vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support, covered
from flhe.math import keystream
from flhe.schemes.flashe import sparse
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.flashe.masking import (
    Bitmap,
    Mode,
    cheaper,
    expected,
    for_dropout,
    for_supports,
)
from flhe.schemes.flashe.scheme import Flashe
from tests.laws import KEY, SLOT, add_up, flashe_lanes, whole


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the streams that are made."""
    made: list[int] = []

    class Counted(keystream.OpenSsl):
        def into(self, out: Any, count: int, block: int, terms: Any) -> None:
            made.extend([*terms[0], *terms[1]])
            super().into(out, count, block, terms)

    monkeypatch.setattr(keystream, "fastest", lambda: Counted)
    return made


@pytest.mark.parametrize(
    ("masking", "senders", "streams"),
    [
        ("double", range(9), [0, 9]),
        ("double", [0, 1, 2, 5, 6], [0, 3, 5, 7]),
        ("double", [0, 2, 4], [0, 1, 2, 3, 4, 5]),
        ("single", [0, 1, 2, 5, 6], [0, 1, 2, 5, 6]),
    ],
)
def test_opening_costs_two_streams_a_run(
    masking: Any, senders: Iterable[int], streams: list[int], numbers: list[int]
) -> None:
    scheme, total = Flashe(masking=masking).adder(9, 16), None
    for j in senders:
        numbers.clear()
        part = FlasheSealer(scheme, KEY, j).encrypt(whole([1] * 10), SLOT)
        total = scheme.add(total, part)
        assert sorted(numbers) == ([j, j + 1] if masking == "double" else [j])
    assert total is not None
    numbers.clear()
    assert set(FlasheOpener(scheme, KEY).decrypt(total).tolist()) == {len(total.senders)}
    assert sorted(numbers) == streams


def test_the_two_modes_share_no_mask() -> None:
    """A server that asked for both in one round would otherwise hold F(j + 1) alone."""

    def lanes(masking: Any, rank: int) -> Any:
        scheme = Flashe(masking=masking).adder(3, 16)
        sealed = FlasheSealer(scheme, KEY, rank).encrypt(whole([0] * 64), SLOT)
        return flashe_lanes(scheme, sealed)

    difference = (lanes("single", 1) - lanes("double", 1)) % 2**18
    assert np.count_nonzero(difference == lanes("single", 2) % 2**18) < 4


@pytest.mark.parametrize("bits", [2, 16, 32])
def test_what_is_prepared_becomes_the_ciphertext(bits: int) -> None:
    scheme = Flashe().adder(20, bits)
    sealer = FlasheSealer(scheme, KEY, 4)
    length = 2 * scheme.packing.block + 7
    sealer.prepare(SLOT, length)
    (ready,) = sealer._ready.values()
    assert ready.size == scheme.nbytes(length)  # b bits a value, not a whole lane
    sealed = sealer.encrypt(whole([1] * length), SLOT)
    assert np.shares_memory(sealed.data, ready)
    assert not sealer._ready
    assert FlasheOpener(scheme, KEY).decrypt(sealed).tolist() == [1] * length


SCHEME = Flashe(masking="adaptive").adder(3, 16)
both_modes = pytest.mark.parametrize("mode", ["double", "single"])


@both_modes
@pytest.mark.parametrize(
    ("density", "ranks"), [(0.0, (0, 2)), (0.01, (0, 2)), (0.4, (0, 1, 2)), (1.0, (0, 2))]
)
@pytest.mark.parametrize("length", [65_535, 300_001])
def test_lengths_beyond_one_chunk_and_threads_agree(
    mode: str, density: float, ranks: tuple[int, ...], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, bound = np.random.default_rng(1), SCHEME.space.bound
    dense, extras, sent, parts = np.zeros(length, np.int64), np.zeros(3, np.int64), [], []
    for rank in ranks:
        coords = np.flatnonzero(rng.random(length) < density).astype(np.uint32)
        values = rng.integers(-bound, bound + 1, coords.size + 3).astype(np.int32)
        plain, support = Plain(values[3:], values[:3], coords), Support.of(coords, length)
        one, other = (
            FlasheSealer(SCHEME, KEY, rank, threads=threads).encrypt(
                plain, SLOT, mode=mode, support=support
            )
            for threads in (1, 3)
        )
        assert one.digest() == other.digest()
        parts.append(one)
        sent.append(coords)
        dense[coords] += plain.values
        extras += plain.extras
    total = SCHEME.close(add_up(SCHEME, parts, rng))
    union = np.unique(np.concatenate(sent))
    assert np.array_equal(covered(total.supports), union)
    assert total.data.size == SCHEME.nbytes(union.size + 3)
    for few, threads in itertools.product((True, False), (1, 3)):  # by blocks, and by streams
        monkeypatch.setattr(sparse, "_few", lambda *_, few=few: few)
        opened = FlasheOpener(SCHEME, KEY, threads=threads).decrypt(total)
        assert np.array_equal(opened, np.concatenate([dense[union], extras]))


# --- counting masks: by brute force, for every subset, by the scheme itself ---

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


def made_by(mode: Mode, senders: Iterable[int]) -> int:
    """What the scheme itself generates for one value that `senders` sent."""
    return sum(map(len, Flashe(masking=mode).adder(1024).mask_terms(senders)))


def brute(mode: Mode, supports: Supports, length: int, extras: int, readers: int) -> int:
    total = 0
    for d in range(length):
        senders = [rank for rank in supports if d in supports[rank]]
        total += sum(made_by(mode, (rank,)) for rank in senders)
        total += readers * made_by(mode, senders)
    total += extras * sum(made_by(mode, (rank,)) for rank in supports)
    return total + readers * extras * made_by(mode, supports)


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
            mean = sum(OWN[mode] + made_by(mode, chosen) for chosen in sets) / len(sets)
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

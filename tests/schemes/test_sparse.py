"""FLASHE on sparse vectors: any supports, senders and masking open to the sum, d by d."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.sparse import covered
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT, add_up

MODES = ("double", "single")


@dataclasses.dataclass
class Case:
    """One round of sparse vectors, encrypted."""

    scheme: Flashe
    length: int
    plains: list[Plain]
    supports: list[Support]
    parts: list[Sealed]
    mode: str

    def total(self, senders: tuple[int, ...], rng: np.random.Generator) -> Sealed:
        """Closed sum of some of them, added in a random order and grouping."""
        return self.scheme.close(add_up(self.scheme, [self.parts[i] for i in senders], rng))

    def expected(self, senders: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Dense sums of the coordinates, and sums of the extras."""
        dense = np.zeros(self.length, np.int64)
        for i in senders:
            np.add.at(dense, self.plains[i].coords, self.plains[i].values)
        return dense, np.sum([self.plains[i].extras for i in senders], axis=0)


def make(
    cohort: int,
    length: int,
    extras: int,
    mode: str,
    rng: np.random.Generator,
    *,
    masking_: Any = "adaptive",
    bits: int = 16,
    density: float | None = None,
    threads: int = 1,
    key: bytes = KEY,
) -> Case:
    scheme = Flashe(cohort, bits, masking_)
    bound = scheme.space.bound
    plains, supports, parts = [], [], []
    for rank in range(cohort):
        share = rng.random() if density is None else density
        coords = np.flatnonzero(rng.random(length) < share).astype(np.uint32)
        values = rng.integers(-bound, bound + 1, coords.size).astype(np.int32)
        extra = rng.integers(-bound, bound + 1, extras).astype(np.int32)
        plain = Plain(values, extra, coords)
        support = Support.of(coords, length)
        sealer = FlasheSealer(scheme, key, rank, threads=threads)
        told = mode if masking_ == "adaptive" else ""
        plains.append(plain)
        supports.append(support)
        parts.append(sealer.encrypt(plain, SLOT, mode=told, support=support))
    return Case(scheme, length, plains, supports, parts, mode)


def check(case: Case, senders: tuple[int, ...], rng: np.random.Generator) -> None:
    total = case.total(senders, rng)
    opened = FlasheOpener(case.scheme, KEY).decrypt(total)
    coords = covered(total.supports)
    dense, extras = case.expected(senders)
    got = np.zeros(case.length, np.int64)
    got[coords] = opened[: coords.size]
    assert np.array_equal(got, dense), senders
    assert np.array_equal(opened[coords.size :], extras), senders
    seen = np.zeros(case.length, np.int64)
    for i in senders:
        seen[case.plains[i].coords] += 1
    assert np.array_equal(coords, np.flatnonzero(seen))
    assert total.data.size == case.scheme.nbytes(coords.size + extras.size)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(0, 400),
    st.integers(0, 9),
    st.sampled_from(MODES),
    st.sampled_from([2, 8, 16, 29, 31, 32]),
    st.integers(0, 2**32 - 1),
)
def test_any_patterns(
    cohort: int, length: int, extras: int, mode: str, bits: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    case = make(cohort, length, extras, mode, rng, bits=bits)
    count = int(rng.integers(1, cohort + 1))
    check(case, tuple(sorted(rng.choice(cohort, count, replace=False).tolist())), rng)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("length", [65_535, 140_001])
def test_lengths_beyond_one_chunk_and_threads_agree(mode: str, density: float, length: int) -> None:
    cases = [
        make(3, length, 5, mode, np.random.default_rng(1), density=density, threads=threads)
        for threads in (1, 3)
    ]
    rng = np.random.default_rng(2)
    check(cases[1], (0, 2), rng)
    one, three = (case.total((0, 1, 2), rng) for case in cases)
    assert one.digest() == three.digest()
    openers = [FlasheOpener(cases[0].scheme, KEY, threads=threads) for threads in (1, 3)]
    assert np.array_equal(openers[0].decrypt(one), openers[1].decrypt(three))


@pytest.mark.parametrize("masking_", MODES)
def test_a_full_support_is_the_dense_ciphertext(masking_: str) -> None:
    """Sparse and dense vectors have the same masks: a support changes only what is left out."""
    rng = np.random.default_rng(6)
    scheme = Flashe(3, 16, masking_)  # type: ignore[arg-type]
    values = rng.integers(-9, 10, 200).astype(np.int32)
    coords = np.arange(200, dtype=np.uint32)
    extras = np.array([1, 2], np.int32)
    dense = FlasheSealer(scheme, KEY, 1).encrypt(Plain(values, extras), SLOT)
    full = FlasheSealer(scheme, KEY, 1).encrypt(
        Plain(values, extras, coords), SLOT, support=Support.of(coords, 200)
    )
    assert np.array_equal(dense.data, full.data)


@pytest.mark.parametrize("mode", MODES)
def test_altered_supports_do_not_open_to_the_sum(mode: str) -> None:
    rng = np.random.default_rng(9)
    case = make(3, 200, 3, mode, rng, density=0.3)
    total = case.total((0, 1, 2), rng)
    swapped = dataclasses.replace(total, supports=total.supports[1:] + total.supports[:1])
    dense, _ = case.expected((0, 1, 2))
    coords = covered(swapped.supports)
    opened = FlasheOpener(case.scheme, KEY).decrypt(swapped)
    assert np.count_nonzero(opened[: coords.size] != dense[coords]) > 20
    short = dataclasses.replace(total, length=10, data=total.data[:25])
    with pytest.raises(ProtocolError, match="shorter"):
        FlasheOpener(case.scheme, KEY).decrypt(short)

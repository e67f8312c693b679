"""Packing: held to big integers, for every width and on both sides of a block's border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.pack import COLUMNS, Packing, slices, spread
from flhe.math import kernels
from tests.reference.part_formats import formula
from tests.reference.wire import packed as reference


def array(values: list[int], bits: int) -> NDArray[Any]:
    return np.array(values, Packing(bits).signed)


def no_mask(length: int, bits: int) -> NDArray[Any]:
    return np.zeros(length, Packing(bits).lane)


def unpacked(data: NDArray[np.uint8], length: int, bits: int) -> list[int]:
    packing = Packing(bits)
    out = np.empty(length, packing.signed)
    return packing.unpack(data, no_mask(length, bits), out).tolist()


def wrap(value: int, bits: int) -> int:
    """`value` modulo 2**bits, as a signed integer."""
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


@pytest.mark.parametrize("bits", range(1, 65))
def test_packs_unpacks_and_adds_like_big_integers(bits: int) -> None:
    packing = Packing(bits)
    for length in (0, 1, packing.block - 1, packing.block, packing.block + 1):
        ours = formula(length, bits)
        data = packing.pack(array(ours, bits), no_mask(length, bits))
        assert data.tobytes() == reference(ours, bits)
        assert data.size == packing.nbytes(length) == (length * bits + 7) // 8
        assert unpacked(data, length, bits) == ours

        theirs = formula(length + 5, bits)[5:]
        part = packing.pack(array(theirs, bits), no_mask(length, bits))
        kept = part.copy()
        packing.add(data, part, length)
        sums = [a + b for a, b in zip(ours, theirs, strict=True)]
        assert data.tobytes() == reference(sums, bits)
        assert np.array_equal(part, kept)


@pytest.mark.parametrize("bits", [1, 2, 7, 20, 31, 32, 33, 40, 63, 64])
def test_carries_stay_inside_their_value(bits: int) -> None:
    """All ones plus one: the authors' packed addition carries into the neighbour here."""
    packing = Packing(bits)
    length = packing.block + 3
    ones = packing.pack(array([-1] * length, bits), no_mask(length, bits))
    one = packing.pack(array([wrap(1, bits)] * length, bits), no_mask(length, bits))
    packing.add(ones, one, length)
    assert not ones.any()


@pytest.mark.parametrize("bits", [5, 20, 32, 37, 64])
def test_masks_add_on_the_way_in_and_on_the_way_out(bits: int) -> None:
    packing = Packing(bits)
    length = packing.block + 77
    values = formula(length, bits)
    rng = np.random.default_rng(bits)
    mask = rng.integers(0, 1 << packing.word_bits, length, packing.lane)
    data = packing.pack(array(values, bits), mask)
    masked = [v + m for v, m in zip(values, mask.tolist(), strict=True)]
    assert data.tobytes() == reference(masked, bits)
    out = np.empty(length, packing.signed)
    with np.errstate(over="ignore"):
        negated = packing.lane(0) - mask
    assert packing.unpack(data, negated, out).tolist() == values


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 64), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_short_vectors(bits: int, numbers: list[int]) -> None:
    values = [wrap(n, bits) for n in numbers]
    data = Packing(bits).pack(array(values, bits), no_mask(len(values), bits))
    assert data.tobytes() == reference(values, bits)
    assert unpacked(data, len(values), bits) == values


def test_packing_in_slices_gives_the_bytes_of_one_call() -> None:
    packing = Packing(20)
    length = 3 * packing.block + 9
    values, mask = array(formula(length, 20), 20), no_mask(length, 20)
    out = np.empty(packing.nbytes(length), np.uint8)

    def work(start: int, stop: int) -> None:
        first = start * 20 // 8
        packing.pack(
            values[start:stop], mask[start:stop], out[first : first + packing.nbytes(stop - start)]
        )

    spread(work, length, packing.block, 2)
    assert out.tobytes() == packing.pack(values, mask).tobytes()


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 16))
def test_slices_cover_once_and_start_at_borders(length: int, step: int, threads: int) -> None:
    parts = list(slices(length, step, threads))
    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
    assert (parts[-1][1] if parts else 0) == length
    assert len(parts) <= threads
    assert all(start % step == 0 for start, _ in parts)


def test_an_error_on_a_thread_is_raised() -> None:
    def work(start: int, stop: int) -> None:
        if start:
            raise errors.RangeError("here")

    with pytest.raises(errors.RangeError, match="here"):
        spread(work, 10, 1, 2)


@pytest.mark.parametrize("extra", [-1, 1])
def test_data_of_another_length_is_refused(extra: int) -> None:
    packing = Packing(20)
    good, bad = (np.zeros(n, np.uint8) for n in (25, 25 + extra))
    with pytest.raises(errors.ProtocolError, match=rf"{25 + extra} bytes, 10 values .* take 25"):
        unpacked(bad, 10, 20)
    with pytest.raises(errors.ProtocolError, match="take 25"):
        packing.add(bad, good, 10)
    with pytest.raises(errors.ProtocolError, match="take 25"):
        packing.add(good, bad, 10)


def test_columns_are_those_of_the_kernels() -> None:
    assert COLUMNS == kernels.COLUMNS

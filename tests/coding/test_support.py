"""Support: its two codings bit by bit, its size, and that nothing else is accepted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.support import Support
from tests.reference.support import coded as reference
from tests.reference.support import octets, start


def array(coords: list[int]) -> NDArray[np.uint32]:
    return np.array(coords, np.uint32)


@st.composite
def sets(draw: st.DrawFn, most: int = 400) -> tuple[list[int], int]:
    length = draw(st.integers(0, most))
    count = draw(st.integers(0, length))
    seed = draw(st.integers(0, 2**32 - 1))
    spread = draw(st.sampled_from([1, 1, 3]))  # evenly, or close to the start
    order = np.random.default_rng(seed).permutation(max(length // spread, min(count, length)))
    return sorted(order[:count].tolist()), length


@given(sets())
@example(([25, 50, 62, 71, 81, 93, 100], 103))  # a larger parameter than the mean gap's is best
@settings(max_examples=150, deadline=None)
def test_codes_as_the_reference_and_back(given_set: tuple[list[int], int]) -> None:
    coords, length = given_set
    support = Support.of(array(coords), length)
    assert support.data == reference(coords, length)
    assert support.count == len(coords)
    again = Support.from_bytes(support.data, length)
    assert again == support
    assert again.coords.tolist() == coords
    assert again.coords.dtype == np.uint32
    words = support.bitmap().tolist()
    assert len(words) == -(-length // 64)
    assert [d for d in range(length) if words[d // 64] >> d % 64 & 1] == coords
    assert sum(w.bit_count() for w in words) == len(coords)


LENGTH = 100


@pytest.mark.parametrize("p", range(32))
def test_hostile_runs_of_zeros_do_not_wrap(p: int) -> None:
    """Zeros shifted by a large parameter must leave the layout, not come round to its start."""
    length = 1 << 20
    for zeros in (1 << 16, 1 << 18, 1 << 19):
        told = start(1 + p, 1) + octets("0" * zeros + "1" + "0" * p)
        with pytest.raises(errors.ProtocolError):
            Support.from_bytes(told, length)


def test_coordinates_cannot_be_changed_behind_its_back() -> None:
    given_coords = array([1, 2, 50])
    support = Support.of(given_coords, LENGTH)
    given_coords[0] = 7
    assert support.coords.tolist() == [1, 2, 50]
    for kept in (support, Support.from_bytes(support.data, LENGTH)):
        with pytest.raises(ValueError, match="read-only"):
            kept.coords[0] = 3

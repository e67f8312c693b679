"""Permute: values stay with their coordinates, sums are not disturbed, keys are not shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Plain, State
from flhe.coding.permute import DENSE, Permute
from flhe.math.permutation import SMALL, Permutation

KEY = bytes(range(32))
EXTRAS = np.array([1, 17], np.int64)
DTYPES = [np.float32, np.float64, np.int16, np.int32, np.int64]


def array(coords: Any) -> NDArray[np.uint32]:
    return np.array(coords, np.uint32)


@given(
    st.sampled_from([1, 5, 64, 65, 1000, SMALL, 100_000]),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**32 - 1),
    st.sampled_from(DTYPES),
)
@settings(max_examples=100, deadline=None)
def test_values_go_with_their_coordinates(length: int, key: bytes, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, min(length, 3000) + 1))
    coords = np.sort(rng.permutation(length)[:count]).astype(np.uint32)
    values = rng.integers(-30_000, 30_000, 2 * count).astype(dtype)[::2]  # not in one piece
    permutation = Permutation(key, length)
    codec = Permute(permutation)
    plain = Plain(values, EXTRAS, coords)
    encoded, state = codec.encode(plain, State(3, 4))
    assert state == State(3, 4)
    images = permutation.forward(coords).tolist()
    wanted = sorted(zip(images, values.tolist(), strict=True))
    assert encoded.coords is not None
    got = (encoded.coords.tolist(), encoded.values.tolist())
    assert list(zip(*got, strict=True)) == wanted
    assert encoded.values.dtype == dtype
    assert encoded.coords.dtype == np.uint32
    assert encoded.extras is EXTRAS
    opened, _ = codec.decode(encoded, (0,), State())
    assert opened.extras is EXTRAS
    assert opened.values.dtype == dtype
    if encoded.values.itemsize > 4 or count < length // DENSE:
        assert np.array_equal(opened.coords, coords)
        assert np.array_equal(opened.values, values)
        return
    dense = np.zeros(length, dtype)
    dense[coords] = values
    assert opened.coords is None
    assert np.array_equal(opened.values, dense)


def test_it_must_have_a_permutation_and_a_sparse_update() -> None:
    sparse, dense = Plain(np.ones(1), EXTRAS, array([0])), Plain(np.ones(1), EXTRAS)
    codec = Permute(Permutation(KEY, 1))
    for step in (lambda c, p: c.encode(p, State()), lambda c, p: c.decode(p, (0,), State())):
        with pytest.raises(errors.ConfigError, match="session supplies it"):
            step(Permute(), sparse)
        with pytest.raises(errors.MisfitError, match="put TopK before it"):
            step(codec, dense)
    assert codec.parameters() == Permute().parameters() == {"name": "permute"}


@pytest.mark.parametrize("length", [10, SMALL])
def test_broken_coordinates_are_refused(length: int) -> None:
    codec = Permute(Permutation(KEY, length))
    with pytest.raises(errors.ProtocolError, match="stands twice"):
        codec.encode(Plain(np.ones(3), EXTRAS, array([0, 4, 4])), State())
    with pytest.raises(errors.ProtocolError, match="stands twice"):
        codec.decode(Plain(np.ones(3), EXTRAS, array([0, 4, 4])), (0,), State())
    many = np.arange(length // 2, dtype=np.uint32)
    for broken in (np.roll(many, 1), np.maximum(many, 1)):
        with pytest.raises(errors.ProtocolError, match="do not ascend"):
            codec.decode(Plain(np.ones(many.size, np.int32), EXTRAS, broken), (0,), State())
    for dtype in (np.int32, np.int64):
        with pytest.raises(errors.ProtocolError, match="one value"):
            codec.decode(Plain(np.ones(many.size + 1, dtype), EXTRAS, many), (0,), State())

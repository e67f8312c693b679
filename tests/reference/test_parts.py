"""Parts of the schemes against their second implementations, anywhere at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.math.permutation import SMALL, Permutation
from tests.reference.permutation import permutation

KEYS = st.binary(min_size=32, max_size=32)
EDGES = st.sampled_from([SMALL - 1, SMALL, SMALL + 1, 256**2 + 257, 2**17 - 1, 3**11])
USUAL = st.integers(1, 3000) | EDGES | st.integers(SMALL, 10**6)
ANY = pytest.param(EDGES | st.integers(1, 2**31 - 1), 300, marks=pytest.mark.sweep)


@pytest.mark.parametrize(("lengths", "examples"), [(USUAL, 80), ANY], ids=["usual", "any"])
def test_permutations(lengths: st.SearchStrategy[int], examples: int) -> None:
    @settings(deadline=None, max_examples=examples)
    @given(KEYS, lengths, st.data())
    def alike(key: bytes, length: int, data: st.DataObject) -> None:
        ours, theirs = Permutation(key, length), permutation(key, length)
        coords = data.draw(st.lists(st.integers(0, length - 1), max_size=10))
        coords += [0, length - 1, length // 2]  # a shuffle's inverse is searched for
        where = np.array(coords, np.uint32)
        assert ours.forward(where).tolist() == [theirs.forward(d) for d in coords]
        assert ours.inverse(where).tolist() == [theirs.inverse(d) for d in coords]

    alike()

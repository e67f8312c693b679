"""The paper's own SASH: how wrong its sums are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe_lab.papers.sash import MU, lwr_masks, mask


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_sums_are_wrong_by_less_than_the_cohort(cohort: int, start: int) -> None:
    seeds = np.random.default_rng(start).integers(0, 2**64, (cohort, MU), np.uint64)
    masks = np.sum([mask(seed, 300) for seed in seeds], axis=0, dtype=np.uint32)
    error = (masks - mask(seeds.sum(axis=0), 300)).view(np.int32)
    assert int(np.abs(error).max()) <= cohort - 1
    # Floors lose something: an exact sum here would mean that nothing is measured.
    assert cohort < 10 or int(np.abs(error).max()) > 0


def test_the_mask_is_the_floor_of_the_product() -> None:
    seed, *rows = np.random.default_rng(1).integers(0, 2**64, (6, MU), np.uint64)
    expected = [
        (sum(int(a) * int(k) for a, k in zip(row, seed, strict=True)) % 2**64) >> 32 for row in rows
    ]
    assert lwr_masks(seed, np.array(rows)).tolist() == expected

"""The paper's own SASH: how wrong its sums are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.math.prg import AesCtr
from flhe_lab.papers.sash import MU, PaperSash


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_sums_are_wrong_by_less_than_the_cohort(cohort: int, start: int) -> None:
    paper = PaperSash(cohort)
    rng = np.random.default_rng(start)
    values = rng.integers(0, 1 << 16, (cohort, 300)).astype(np.uint32)
    seeds = [paper.seed() for _ in range(cohort)]
    total = np.zeros(300, np.uint32)
    for vector, seed in zip(values, seeds, strict=True):
        total += paper.encrypt(vector, seed)
    opened = paper.decrypt(total, np.sum(seeds, axis=0, dtype=np.uint64))
    error = (opened - values.sum(axis=0, dtype=np.uint32)).view(np.int32)
    assert int(np.abs(error).max()) <= cohort - 1
    # Floors lose something: an exact sum here would mean that nothing is measured.
    assert cohort < 10 or int(np.abs(error).max()) > 0


def test_the_mask_is_the_floor_of_the_product() -> None:
    paper = PaperSash(3)
    seed = paper.seed()
    stream, words = AesCtr().stream(bytes(32), 0), np.empty(8 * MU * 5 + 16, np.uint8)
    stream.into(words, 8 * MU * 5)
    rows = words[: 8 * MU * 5].view("<u8").reshape(5, MU)
    expected = [
        (sum(int(a) * int(k) for a, k in zip(row, seed, strict=True)) % 2**64) >> 32 for row in rows
    ]
    assert paper.mask(seed, 5).tolist() == expected
    assert paper.mask(seed, 200)[:5].tolist() == expected

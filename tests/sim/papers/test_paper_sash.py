"""The paper's own SASH: its generator."""

from __future__ import annotations

import numpy as np

from flhe_lab.papers.sash import MU, lwr_masks


def test_the_mask_is_the_floor_of_the_product() -> None:
    seed, *rows = np.random.default_rng(1).integers(0, 2**64, (6, MU), np.uint64)
    expected = [
        (sum(int(a) * int(k) for a, k in zip(row, seed, strict=True)) % 2**64) >> 32 for row in rows
    ]
    assert lwr_masks(seed, np.array(rows)).tolist() == expected

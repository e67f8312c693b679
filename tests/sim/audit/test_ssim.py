"""SSIM: against scikit-image, closed forms, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe_lab.audit.ssim import C1, ssim

INDEX = np.arange(3 * 32 * 40).reshape(3, 32, 40)
NOISE = (INDEX * INDEX * 7919 % 1009) / 1008
NEAR = np.clip(0.8 * NOISE + 0.1 + 0.1 * np.sin(INDEX / 17), 0, 1)
SLOPE = (INDEX % 40 + INDEX // 40 % 32) / 70


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (NOISE, NOISE, 1.0),
        (NOISE, NEAR, 0.9386353556303794),
        (NEAR, SLOPE, 0.016219989911814916),
        (SLOPE, 1 - SLOPE, -0.2878996508105227),
        (NOISE, NOISE[:, ::-1], 0.02794992261628188),
    ],
)
def test_scikit_image_agrees(
    one: NDArray[np.float64], other: NDArray[np.float64], expected: float
) -> None:
    """Its `structural_similarity`, gaussian_weights=True, sigma=1.5, use_sample_covariance=False."""
    assert ssim(one, other) == pytest.approx(expected, abs=1e-12)
    assert ssim(other, one) == pytest.approx(expected, abs=1e-12)


def test_flat_images_differ_by_their_means_alone() -> None:
    one, other = np.full((1, 11, 11), 0.25), np.full((1, 11, 11), 0.75)
    expected = (2 * 0.25 * 0.75 + C1) / (0.25**2 + 0.75**2 + C1)
    assert ssim(one, other) == pytest.approx(expected, abs=1e-12)

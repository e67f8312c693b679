"""SSIM: how alike two images look, 1 for equal ones.

    SSIM = (2 m_x m_y + C1) (2 s_xy + C2) / ((m_x^2 + m_y^2 + C1) (s_x^2 + s_y^2 + C2))

with means and (co)variances under a Gaussian window of 11 x 11 pixels, sigma 1.5, that lies wholly
within the image; C1 = 0.01^2 and C2 = 0.03^2 for values in [0, 1]. Averaged over windows and planes.

Source: Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004),
Sec. III-B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 11
SIGMA = 1.5
C1, C2 = 0.01**2, 0.03**2

Image = NDArray[np.floating[Any]]


def ssim(one: Image, other: Image) -> float:
    """Mean SSIM of two images, floats in [0, 1], both (planes, height, width)."""
    x, y = one.astype(np.float64), other.astype(np.float64)
    mean_x, mean_y = _blur(x), _blur(y)
    var_x, var_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    likeness *= (2 * covariance + C2) / (var_x + var_y + C2)
    return float(likeness.mean())


def _blur(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted means of all windows, shape (planes, height - 10, width - 10)."""
    at = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(at**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    for axis in (1, 2):
        image = np.lib.stride_tricks.sliding_window_view(image, WINDOW, axis) @ weights
    return image

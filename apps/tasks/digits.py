"""Handwritten digits, 8 x 8, from scikit-learn: no download.

Enlarged to 28 x 28 they stand in for Fashion-MNIST and FEMNIST, under names that say so. Results on
them are not figures of either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from flhe_app.tasks.base import Data, Examples

TEST_SHARE, SIDE = 0.2, 8


@dataclass(frozen=True, slots=True)
class Digits:
    """1,797 images of ten digits; a fixed, stratified fifth of them is the common test set."""

    title: str = "handwritten digits"  # Name in figures
    classes: int = 10  # Classes of the model, 10 or more: labels are 0 to 9
    size: int = SIDE  # Pixels are 0 to 1; of larger images, which are enlarged, -1 to 1
    train_size: int = 1437

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image for a model."""
        return 1, self.size, self.size

    def there(self, data_dir: str) -> bool:
        """Return True: they are installed."""
        return True

    def place(self, task: str, data_dir: str, *, download: bool = False) -> None:
        """Do nothing: it needs no place."""

    def load(self, task: str, data_dir: str, *, download: bool = False) -> Data:
        """Read the data set from scikit-learn; it needs no files."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        train, test = train_test_split(
            np.arange(len(labels)), test_size=TEST_SHARE, stratify=labels, random_state=0
        )
        pixels = torch.from_numpy(images.astype(np.float32) / 16.0).reshape(-1, 1, SIDE, SIDE)
        if self.size > SIDE:
            size = (self.size, self.size)
            pixels = functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
            pixels = pixels.sub_(0.5).mul_(2.0)
        examples = Examples(pixels, torch.from_numpy(labels.astype(np.int64)))
        return Data(examples.take(train), examples.take(test))

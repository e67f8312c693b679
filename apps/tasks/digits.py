"""Handwritten digits, 8 x 8, that come inside scikit-learn: no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from flhe_app.tasks.base import Data, Examples

TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Digits:
    """1,797 images of ten digits; a fixed, stratified fifth of them is the common test set."""

    name: str = "digits"
    train_size: int = 1437
    classes: int = 10

    def build(self) -> nn.Module:
        """Make a small CNN of 38,282 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def load(self, data_dir: str, *, download: bool) -> Data:
        """Read the data set from scikit-learn; `data_dir` and `download` do not matter."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        train, test = train_test_split(
            np.arange(len(labels)), test_size=TEST_SHARE, stratify=labels, random_state=0
        )
        pixels = torch.from_numpy(images.astype(np.float32) / 16.0).reshape(-1, 1, 8, 8)
        examples = Examples(pixels, torch.from_numpy(labels.astype(np.int64)))
        return Data(examples.take(train), examples.take(test))


DIGITS = Digits()

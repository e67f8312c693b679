"""CIFAR-10 and Fashion-MNIST with one CNN for both; where the images are found, says `images.py`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from flhe_app.tasks.base import Data
from flhe_app.tasks.images import CIFAR10_IMAGES, FASHION_IMAGES, Images


@dataclass(frozen=True, slots=True)
class Vision:
    """A set of images and a CNN for it.

    Parameters
    ----------
    name : str
        The task's name.
    source : Images
        Where its images come from.
    """

    name: str
    source: Images

    @property
    def train_size(self) -> int:
        """Images of the whole training half."""
        return self.source.train_size

    @property
    def classes(self) -> int:
        """Labels that there are."""
        return self.source.classes

    def build(self) -> nn.Module:
        """Make a CNN of two convolutions: 1.07M (CIFAR-10) or 0.82M parameters."""
        return nn.Sequential(
            nn.Conv2d(self.source.channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (self.source.size // 4) ** 2, 256),
            nn.ReLU(),
            nn.Linear(256, self.classes),
        )

    def load(self, data_dir: str, *, download: bool) -> Data:
        """Read both halves; see `Images.load`."""
        return self.source.load(self.name, data_dir, download=download)


CIFAR10 = Vision("cifar10", CIFAR10_IMAGES)
FASHION_MNIST = Vision("fashion-mnist", FASHION_IMAGES)

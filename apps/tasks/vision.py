"""CIFAR-10 and Fashion-MNIST, read by torchvision from a directory of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flhe.apps.tasks.base import Data, Examples
from flhe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Vision:
    """A torchvision data set of ten classes and a CNN for it.

    Parameters
    ----------
    name : str
        The task's name.
    dataset : str
        Class in `torchvision.datasets`.
    folder : str
        Where torchvision looks for the files, below the data directory.
    train_size, channels, size : int
        Training examples; planes and width of an image.
    """

    name: str
    dataset: str
    folder: str
    train_size: int
    channels: int
    size: int

    def build(self) -> nn.Module:
        """Make a CNN of two convolutions: 1.07M (CIFAR-10) or 0.82M parameters."""
        return nn.Sequential(
            nn.Conv2d(self.channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (self.size // 4) ** 2, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )

    def load(self, data_dir: str, *, download: bool) -> Data:
        """Read both halves from `data_dir`; fetch what is missing only if `download`."""
        if not data_dir:
            raise ConfigError(
                f"task={self.name!r} needs its data set: put {self.folder}/ into a directory "
                "and name that directory with --data-dir (data-dir in the run config)"
            )
        return Data(
            self._half(data_dir, train=True, download=download),
            self._half(data_dir, train=False, download=download),
        )

    def _half(self, data_dir: str, *, train: bool, download: bool) -> Examples:
        from torchvision import datasets

        root = Path(data_dir).expanduser()
        try:
            half: Any = getattr(datasets, self.dataset)(root, train=train, download=download)
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                f"task={self.name!r}: {self.folder}/ is missing or damaged in the data directory; "
                "put it there and name the directory with --data-dir, "
                "or set download=true to let torchvision fetch it"
            ) from error
        pixels = np.asarray(half.data, dtype=np.float32) / 255.0
        pixels = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
        images = torch.from_numpy(np.ascontiguousarray(pixels)).sub_(0.5).mul_(2.0)
        return Examples(images, torch.as_tensor(half.targets, dtype=torch.int64))


CIFAR10 = Vision("cifar10", "CIFAR10", "cifar-10-batches-py", 50_000, 3, 32)
FASHION_MNIST = Vision("fashion-mnist", "FashionMNIST", "FashionMNIST/raw", 60_000, 1, 28)

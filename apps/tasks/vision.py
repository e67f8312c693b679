"""CIFAR-10 and Fashion-MNIST, from a directory of the user's own (read by torchvision) or an .npz file.

A file holds a sample, or all, as x_train, y_train, x_test, y_test: bytes of shape (n, height, width,
channels), or without channels, and labels 0 to 9.
"""

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
        """Read both halves from `data_dir`, a directory or an .npz file.

        What is missing in a directory is fetched only if `download`.
        """
        if not data_dir:
            raise ConfigError(
                f"task={self.name!r} needs its data set: put {self.folder}/ into a directory "
                "and name that directory with --data-dir (data-dir in the run config)"
            )
        if data_dir.endswith(".npz"):
            return self._from_file(Path(data_dir).expanduser())
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
        return _examples(half.data, half.targets)

    def _from_file(self, path: Path) -> Data:
        try:
            with np.load(path, allow_pickle=False) as file:
                halves = [(file[f"x_{half}"], file[f"y_{half}"]) for half in ("train", "test")]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"task={self.name!r}: {path.name} cannot be read; it must be an .npz file that holds "
                "x_train, y_train, x_test and y_test"
            ) from error
        shape = (self.size, self.size, self.channels)
        for pixels, labels in halves:
            flat = pixels.shape[1:] if pixels.ndim == 4 else (*pixels.shape[1:], 1)
            if pixels.dtype != np.uint8 or flat != shape or labels.shape != pixels.shape[:1]:
                raise ConfigError(
                    f"task={self.name!r}: {path.name} holds {pixels.dtype} images of shape "
                    f"{pixels.shape[1:]}, expected uint8 of {shape}, and a label for each"
                )
        return Data(*(_examples(pixels, labels) for pixels, labels in halves))


def _examples(images: Any, labels: Any) -> Examples:
    """Pixels as bytes, and labels, to what a model takes: planes first, -1 to 1."""
    pixels = np.asarray(images, dtype=np.float32) / 255.0
    pixels = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).sub_(0.5).mul_(2.0)
    return Examples(planes, torch.as_tensor(np.asarray(labels), dtype=torch.int64))


CIFAR10 = Vision("cifar10", "CIFAR10", "cifar-10-batches-py", 50_000, 3, 32)
FASHION_MNIST = Vision("fashion-mnist", "FashionMNIST", "FashionMNIST/raw", 60_000, 1, 28)

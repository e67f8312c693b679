"""Sets of images: in torchvision's files, or in an .npz file.

A file holds a sample, or all, as x_train, y_train, x_test, y_test: bytes of shape (n, height,
width, channels), or without channels, and labels from 0. A directory holds torchvision's files, or
one such file whose name begins with the set's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.files import Files

TEST_EVERY = 10
"""Interval of test images in a set without a test half: it includes all writers."""


@dataclass(frozen=True, slots=True)
class Images(Files):
    """A set of images of one size."""

    title: str  # Name in figures
    classes: int  # Number of labels
    train_size: int  # Images of the whole training half
    channels: int  # Planes of an image
    size: int  # Its width, in pixels
    stem: str
    dataset: str = ""  # Class in `torchvision.datasets`; "" for none
    folder: str = ""
    hub: str = ""
    SUFFIX: ClassVar[str] = ".npz"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image for a model."""
        return self.channels, self.size, self.size

    def from_folder(self, task: str, root: Path, download: bool) -> Data:
        """See `Files`."""
        from torchvision import datasets

        if self.hub:
            return self._from_hub(task, root)
        kind: Any = getattr(datasets, self.dataset)
        try:
            halves = [kind(root, train=train, download=download) for train in (True, False)]
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                f"task={task!r}: {self.folder}/ is damaged in the data directory, or cannot be "
                f"fetched ({type(error).__name__}); put torchvision's files there again"
            ) from error
        return Data(*(examples(half.data, half.targets) for half in halves))

    def _from_hub(self, task: str, root: Path) -> Data:
        """Fetch all images; there is no test half, so a tenth becomes it."""
        rows = self.fetched(task, root)
        pixels = np.stack([np.asarray(image, np.uint8) for image in rows["image"]])
        labels = np.asarray(rows["character"], np.int64)
        self._check(task, self.hub, pixels, labels)
        test = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
        return Data(*(examples(pixels[half], labels[half]) for half in (~test, test)))

    def from_file(self, task: str, path: Path) -> Data:
        """See `Files`."""
        try:
            with np.load(path, allow_pickle=False) as file:
                halves = [(file[f"x_{half}"], file[f"y_{half}"]) for half in ("train", "test")]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"task={task!r}: {path.name} cannot be read; it must be an .npz file that holds "
                "x_train, y_train, x_test and y_test"
            ) from error
        for pixels, labels in halves:
            self._check(task, path.name, pixels, labels)
        return Data(*(examples(pixels, labels) for pixels, labels in halves))

    def _check(self, task: str, name: str, pixels: NDArray[Any], labels: NDArray[Any]) -> None:
        """Refuse images or labels that are not this set's."""
        shape = (self.size, self.size, self.channels)
        flat = pixels.shape[1:] if pixels.ndim == 4 else (*pixels.shape[1:], 1)
        if pixels.dtype != np.uint8 or flat != shape or labels.shape != pixels.shape[:1]:
            raise ConfigError(
                f"task={task!r}: {name} holds {pixels.dtype} images of shape "
                f"{pixels.shape[1:]}, expected uint8 of {shape}, and a label for each"
            )
        if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise ConfigError(
                f"task={task!r}: {name} holds labels {labels.min()} to {labels.max()}, expected 0 to "
                f"{self.classes - 1}"
            )


def examples(images: Any, labels: Any) -> Examples:
    """Return bytes of pixels, and labels, as inputs of a model: planes first, -1 to 1."""
    pixels = np.asarray(images, dtype=np.float32) / 255.0
    pixels = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).sub_(0.5).mul_(2.0)
    return Examples(planes, torch.as_tensor(np.asarray(labels), dtype=torch.int64))


CIFAR10_IMAGES = Images("CIFAR-10", 10, 50_000, 3, 32, "cifar10", "CIFAR10", "cifar-10-batches-py")
FASHION_IMAGES = Images(
    "Fashion-MNIST", 10, 60_000, 1, 28, "fashion", "FashionMNIST", "FashionMNIST/raw"
)
FEMNIST_IMAGES = Images("FEMNIST", 62, 732_850, 1, 28, "femnist", hub="flwrlabs/femnist")
"""LEAF's: digits and letters of 3,597 writers, 814,277 in all; a tenth of them are for testing."""

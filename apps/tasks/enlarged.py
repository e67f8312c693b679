"""Handwritten digits, 8 x 8 pixels, enlarged to 28 x 28: real images that come with scikit-learn.

They stand in for Fashion-MNIST and FEMNIST where those are not at hand, and only under names that say
so: what is learned from them is no figure of either.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional

from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.digits import DIGITS


@dataclass(frozen=True, slots=True)
class EnlargedDigits:
    """The data set of task `digits`, enlarged."""

    classes: int  # What the model tells apart, 10 or more: labels are 0 to 9
    title: str = "handwritten digits, enlarged"
    train_size: int = DIGITS.train_size
    size: int = 28

    @property
    def shape(self) -> tuple[int, int, int]:
        """One image as a model takes it."""
        return 1, self.size, self.size

    def there(self, data_dir: str) -> bool:
        """They are installed."""
        return True

    def load(self, task: str, data_dir: str, *, download: bool) -> Data:
        """Read the digits and enlarge them, to -1 to 1; they need no files."""
        return Data(*map(self._enlarged, DIGITS.load(data_dir, download=download)))

    def _enlarged(self, half: Examples) -> Examples:
        size = (self.size, self.size)
        pixels = functional.interpolate(
            half.images, size=size, mode="bilinear", align_corners=False
        )
        return Examples(pixels.sub_(0.5).mul_(2.0), half.labels)

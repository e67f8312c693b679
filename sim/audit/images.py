"""Images for the privacy audit: those that come inside scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_lab.audit.lenet import SIZE

if TYPE_CHECKING:
    from PIL.Image import Image

CLASSES = 10

CROPS = (
    ("china.jpg", (150, 40, 460, 350)),
    ("flower.jpg", (170, 20, 570, 420)),
    ("china.jpg", (220, 60, 400, 240)),
    ("flower.jpg", (0, 0, 427, 427)),
)
"""Of scikit-learn's photographs: file, and left, upper, right and lower border in pixels."""

CREDITS = {
    "china.jpg": "scikit-learn's sample photograph, cropped and reduced; some rights reserved by "
    "danielbuechele, flickr.com/photos/danielbuechele/6061409035, CC BY 2.0",
    "flower.jpg": "scikit-learn's sample photograph, cropped and reduced; some rights reserved by "
    "vultilion, flickr.com/photos/vultilion/6056698931, CC BY 2.0",
    "digits": "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, CC BY 4.0",
}
"""Photographs: the README beside them, but for flower.jpg's owner, who is the one in its address."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images and what they are called."""

    pixels: NDArray[np.float32] = field(repr=False)  # In [0, 1], shape (count, 3, 32, 32)
    labels: NDArray[np.int64] = field(repr=False)  # Classes, (count,)
    names: tuple[str, ...]  # Where each comes from
    credits: tuple[str, ...]  # Whose they are

    def __len__(self) -> int:
        return len(self.names)


def samples(count: int) -> Images:
    """Photographs and handwritten digits by turns, at most eight.

    Digits have their own labels; photographs, which have none, are given one each.

    Raises ConfigError: another count.
    """
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_image

    if not 1 <= count <= 2 * len(CROPS):
        raise ConfigError(f"{count} sample images: there are 1 to {2 * len(CROPS)}")
    digits, classes = load_digits(return_X_y=True)
    found: list[tuple[NDArray[np.float32], int, str]] = []
    for i in range(count):
        at = i // 2
        if i % 2 == 0:
            file, box = CROPS[at]
            crop = Image.fromarray(load_sample_image(file)).crop(box)
            found.append((_planes(crop), at, file))
        else:
            byte = (digits[at].reshape(8, 8) / 16 * 255).astype(np.uint8)
            found.append((_planes(Image.fromarray(byte)), int(classes[at]), "digits"))
    pixels, labels, names = zip(*found, strict=True)
    whose = tuple(f"{name}: {CREDITS[name]}" for name in dict.fromkeys(names))
    return Images(np.stack(pixels), np.array(labels, np.int64), names, whose)


def _planes(image: Image) -> NDArray[np.float32]:
    """Resize, and put planes first; float32 (3, 32, 32) in [0, 1]."""
    small: Any = image.convert("RGB").resize((SIZE, SIZE))
    return np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)

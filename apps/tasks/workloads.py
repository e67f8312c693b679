"""The papers' six workloads: networks in the published sizes with their data sets; and one of ours.

FCN on Fashion-MNIST, AlexNet on CIFAR-10 and LSTM on Shakespeare are BatchCrypt's and ESAFL's.
ResNet-20 on CIFAR-10, GRU on Shakespeare and CNN on FEMNIST are FLASHE's, whose GRU predicts next
words. Both language models here predict the next character, as in LEAF's Shakespeare.

Source: BatchCrypt, Table 3; ESAFL, Sec. 8.1; FLASHE, Sec. 6.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from flhe_app.tasks import networks
from flhe_app.tasks.base import Data
from flhe_app.tasks.digits import Digits
from flhe_app.tasks.images import CIFAR10_IMAGES, FASHION_IMAGES, FEMNIST_IMAGES, Images
from flhe_app.tasks.text import SHAKESPEARE, Text

Source = Digits | Images | Text
"""Source of a workload's examples."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A network and its training data."""

    name: str  # The task's name
    build: Callable[[], nn.Module]
    """Make the model; its weights come from torch's global generator."""
    parameters: int  # Number in the papers; 0 if no paper has it
    source: Source  # Source of its examples

    def load(self, data_dir: str, *, download: bool = False) -> Data:
        """Read the data set, fetched only with `download`; ConfigError with the place to put it."""
        return self.source.load(self.name, data_dir, download=download)


ENLARGED = "handwritten digits, enlarged"
WORKLOADS = {
    task.name: task
    for task in (
        Workload("fcn", networks.fcn, 101_770, FASHION_IMAGES),
        Workload("alexnet", networks.alexnet, 1_250_000, CIFAR10_IMAGES),
        Workload("lstm", networks.lstm, 4_020_000, SHAKESPEARE),
        Workload("resnet20", networks.resnet20, 270_000, CIFAR10_IMAGES),
        Workload("gru", networks.gru, 660_000, SHAKESPEARE),
        Workload("cnn", networks.cnn, 1_200_000, FEMNIST_IMAGES),
        Workload("fcn-digits", networks.fcn, 101_770, Digits(ENLARGED, 10, 28)),
        Workload("cnn-digits", networks.cnn, 1_200_000, Digits(ENLARGED, 62, 28)),
        Workload("digits", networks.small_cnn, 0, Digits()),
    )
}
"""By name; the last three are on the data set without files, "digits" is from none of the papers."""

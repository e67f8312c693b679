"""Networks of the papers' six workloads, in their published sizes.

The papers give a kind of network and its number of parameters, not its layers. Layers here are
chosen so that the number, rounded as there, is the published one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from flhe_app.tasks.text import CHARACTERS


def convolved(*planes: int, kernel: int, pooled: Container[int]) -> Iterator[nn.Module]:
    """Convolutions that keep an image's width, from planes to planes; `pooled` ones halve it."""
    for number, (into, out) in enumerate(pairwise(planes), 1):
        yield nn.Conv2d(into, out, kernel, padding=kernel // 2)
        yield nn.ReLU()
        if number in pooled:
            yield nn.MaxPool2d(2)


def dense(*widths: int) -> Iterator[nn.Module]:
    """Dense layers over all values of an example."""
    yield nn.Flatten()
    for number, pair in enumerate(pairwise(widths)):
        if number:
            yield nn.ReLU()
        yield nn.Linear(*pair)


def small_cnn() -> nn.Module:
    """A small CNN over 8 x 8 pixels: 38,282 parameters."""
    return nn.Sequential(*convolved(1, 16, 32, kernel=3, pooled=(2,)), *dense(512, 64, 10))


def fcn() -> nn.Module:
    """Two dense layers over 28 x 28 pixels: 101,770 parameters."""
    return nn.Sequential(*dense(784, 128, 10))


def alexnet() -> nn.Module:
    """AlexNet's five convolutions and three dense layers, narrow, for 32 x 32: 1,251,402 parameters.

    Weights start with He's variance: with PyTorch's smaller one, so many layers without batch norm
    pass on little, and learning starts rounds later.
    """
    convolutions = convolved(3, 32, 64, 128, 128, 64, kernel=3, pooled=(1, 2, 5))
    model = nn.Sequential(*convolutions, *dense(1024, 768, 192, 10))
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model


def cnn() -> nn.Module:
    """Two convolutions and two dense layers, LEAF's for FEMNIST, narrower: 1,203,798 parameters."""
    last = dense(64 * 7 * 7, 360, 62)
    return nn.Sequential(*convolved(1, 32, 64, kernel=5, pooled=(1, 2)), *last)


class Shortcut(nn.Module):
    """Every other pixel, and zeros for as many new planes."""

    def forward(self, images: Tensor) -> Tensor:
        """(count, planes, n, n) -> (count, 2 * planes, n / 2, n / 2)."""
        return functional.pad(images[:, :, ::2, ::2], (0, 0, 0, 0, 0, images.shape[1]))


def resnet20() -> nn.Module:
    """ResNet-20 for CIFAR-10, with batch norm and shortcuts without parameters: 269,722.

    Source: He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), Sec. 4.2.
    """
    from torchvision.models.resnet import BasicBlock

    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    stages = ((pair, () if pair[0] == pair[1] else (2, Shortcut())) for pair in pairwise(widths))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(BasicBlock(*pair, *narrowed) for pair, narrowed in stages),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class NextCharacter(nn.Module):
    """A recurrent network that predicts, after each character, the next.

    `embedded` is the length of a character's vector, `hidden` that of a layer's state.
    """

    def __init__(
        self, cell: type[nn.LSTM] | type[nn.GRU], embedded: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, embedded)
        self.recurrent = cell(embedded, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, CHARACTERS)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 (count, length) -> logits float32 (count, CHARACTERS, length)."""
        states, _ = self.recurrent(self.embedding(codes))
        logits: Tensor = self.head(states)
        return torch.transpose(logits, 1, 2)


def lstm() -> nn.Module:
    """Two layers of LSTM: 4,022,885 parameters."""
    return NextCharacter(nn.LSTM, 84, 560, 2)


def gru() -> nn.Module:
    """Two layers of GRU: 661,401 parameters."""
    return NextCharacter(nn.GRU, 96, 248, 2)

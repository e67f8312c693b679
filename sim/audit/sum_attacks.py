"""Attacks on one opened sum: from a sum of clipped gradients to the digits it was computed of.

    reconstruct    least over x'_i, y'_i of |sum over i of clip(g(x'_i, softmax(y'_i))) - sum|^2
    guess          which of ten digits was it? The one whose clipped gradient is nearest to the sum

The first is the attack of `inversion` on a fresh LeNet. The second knows ten candidates, so noise has
to hide more from it. Both know how many records are in the batch, and the norm that clips gradients.

Source: `inversion`; for the second, Hayes, Mahloujifar, Balle (NeurIPS 2023), see `guarantee`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flhe_lab.audit.images import CLASSES
from flhe_lab.audit.inversion import START_MEAN, START_SIGMA, Attack, fit, gradient
from flhe_lab.audit.lenet import SIZE, lenet
from flhe_lab.audit.shadows import CLIP, SITES, opened
from flhe_lab.audit.ssim import ssim

MODEL = lenet(0).double()


def records() -> tuple[Tensor, Tensor]:
    """Return a digit of each class, (10, 3, 32, 32), and probabilities of the classes; float64."""
    from sklearn.datasets import load_digits

    pixels = load_digits().data[:10]  # in the order of their classes
    images = np.kron(pixels.reshape(-1, 1, 8, 8) / 16, np.ones((3, 4, 4)))
    return torch.from_numpy(images), torch.eye(CLASSES, dtype=torch.float64)


def clipped(images: Tensor, targets: Tensor, *, graph: bool = False) -> Tensor:
    """Return each record's clipped gradient, (count, length); targets are probabilities."""
    each = zip(images[:, None], targets[:, None], strict=True)
    found = torch.stack([gradient(MODEL, *record, graph=graph) for record in each])
    factors: Tensor = CLIP / found.norm(dim=1, keepdim=True).clamp(min=CLIP)
    return found * factors


def seen(parts: Tensor, multiplier: float) -> Tensor:
    """Return what is opened of at most five records' gradients, each at a site of its own."""
    sums = [*parts.numpy(), *np.zeros((SITES - len(parts), parts.shape[1]))]
    return torch.from_numpy(opened(sums, multiplier, 1.0 * len(parts)) * len(parts))


def reconstruct(first: int, count: int, multiplier: float | None, steps: int) -> list[float]:
    """Return the SSIM of each of `count` digits with its reconstruction; None opens no sum.

    Digits and reconstructions are paired so that the SSIM of all is largest.
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    images, targets = (part[first : first + count] for part in records())
    random = torch.Generator().manual_seed(first)
    noise = torch.randn((count, 3, SIZE, SIZE), dtype=torch.float64, generator=random)
    pixels = (START_MEAN + START_SIGMA * noise).requires_grad_()
    if multiplier is not None:
        labels = torch.randn((count, CLASSES), dtype=torch.float64, generator=random)
        free, goal = [pixels, labels.requires_grad_()], seen(clipped(images, targets), multiplier)
        ours = lambda: clipped(free[0], free[1].softmax(1), graph=True).sum(0)  # noqa: E731
        pixels = fit(free, ours, goal, Attack(steps))[0][0]
    guesses = pixels.detach().clamp(0, 1).numpy()
    alike = np.array([[ssim(guess, image.numpy()) for guess in guesses] for image in images])
    return [float(x) for x in alike[linear_sum_assignment(-alike)]]


def guess(multiplier: float | None, repeats: int) -> float:
    """Return how often the right one of ten digits is guessed, of `repeats` opened sums of each."""
    if multiplier is None:
        return 0.1
    gradients, right = clipped(*records()), 0
    for i in np.arange(10).repeat(repeats):
        distances = (gradients - seen(gradients[i : i + 1], multiplier)).square().sum(1)
        right += int(distances.argmin()) == i
    return right / (10 * repeats)

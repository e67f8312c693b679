"""LeNet as gradient inversion is studied on it: sigmoids, so that it can be differentiated twice.

    conv 5x5, 12 planes, stride 2 - sigmoid
    conv 5x5, 12 planes, stride 2 - sigmoid
    conv 5x5, 12 planes           - sigmoid - linear

Weights and biases are uniform in [-0.5, 0.5]: the attack works best on a network as fresh as this.

Source: Zhu et al., "Deep Leakage from Gradients" (NeurIPS 2019), Sec. 4 and its published code.
"""

from __future__ import annotations

import torch
from torch import nn

SIZE = 32
"""Width and height of an image."""

PLANES = 12
SPREAD = 0.5
"""Largest absolute value of a weight."""


def lenet(seed: int) -> nn.Sequential:
    """Make a LeNet for images (count, 3, 32, 32) of ten classes; 15,826 float32 parameters.

    Its weights depend on `seed` alone.
    """
    last = PLANES * (SIZE // 4) ** 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, PLANES, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(PLANES, PLANES, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(PLANES, PLANES, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(last, 10),
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -SPREAD, SPREAD)
    return model

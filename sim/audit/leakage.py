"""Leakage: what a gradient inversion makes of the part of an update that is left in clear.

The server sees one example's gradient of a fresh LeNet as it arrives: quantized, with noise if there is
any, without the coordinates that are encrypted. Ways of choosing these, attacked from the same starts:

    random       another draw for each image
    labels       most sensitive by labels, the paper's map; see `flhe.coding.sensitivity`
    inputs       most sensitive by inputs
    magnitude    the largest gradients, by their mean

The last three maps are those of these very images. Beside them there is `none`, where everything is in
clear, and `all`, where nothing is and the guess is where the attack starts.

Source: FedML-HE, Sec. 2.4 (the choice); Zhu et al. (NeurIPS 2019), the attack, see `inversion`.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flhe.coding.select import Select
from flhe.coding.sensitivity import Of, sensitivity
from flhe_lab.audit.images import CLASSES, Images
from flhe_lab.audit.inversion import Attack, Channel, Seen, gradient, invert
from flhe_lab.audit.lenet import lenet
from flhe_lab.audit.ssim import ssim
from flhe_lab.bench.federation import layout_of
from flhe_lab.bench.host import torch_threads
from flhe_lab.bench.turns import Progress, silent

RULES = ("random", "labels", "inputs", "magnitude")
NONE, ALL = "none", "all"
LABELS = {
    "random": "random",
    "labels": "most sensitive by labels",
    "inputs": "most sensitive by inputs",
    "magnitude": "largest gradients",
}

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the curve, unless others are given."""
PICTURED = SHARES[0]
"""The share in the picture, which is always one of the curve's."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is audited, and how hard it is attacked."""

    shares: tuple[float, ...] = SHARES
    """Of the curve, ascending, between 0 and 1; none or all are always there."""
    attack: Attack = field(default_factory=Attack)  # What is put into each attack
    channel: Channel = field(default_factory=Channel)  # What happens to values in clear
    seed: int = 0  # Of the model, the random choices, the probes, the starts and the noise

    @property
    def points(self) -> list[tuple[str, float]]:
        """Ways and their shares, in the order in which they are attacked."""
        between = [(rule, share) for share in self.shares for rule in RULES]
        return [(NONE, 0.0), (ALL, 1.0), *between]


@dataclass(frozen=True, slots=True)
class Point:
    """One attack: what was hidden from it, and how near it came."""

    way: str  # What was hidden
    share: float  # How much of it
    image: int  # Its number
    ssim: float  # Of the guess against the original
    mse: float  # The same; pixels in [0, 1]
    loss: float  # Of the attack: see `Guess`
    evaluations: int  # The same
    label: bool  # Whether it found the class


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; guesses (planes, height, width) are by way, share and image."""

    setting: Setting
    images: Images
    points: tuple[Point, ...]
    guesses: dict[tuple[str, float, int], NDArray[np.float64]] = field(repr=False)
    seconds: float

    def of(self, way: str, share: float) -> list[Point]:
        """Points of one way and share, image by image."""
        return [p for p in self.points if (p.way, p.share) == (way, share)]

    def mean(self, way: str, share: float) -> tuple[float, float]:
        """SSIM and MSE, means over the images."""
        points = self.of(way, share)
        return float(np.mean([p.ssim for p in points])), float(np.mean([p.mse for p in points]))

    @property
    def pictured(self) -> list[tuple[str, float]]:
        """The ways of the picture, at one share."""
        return [(NONE, 0.0), *((rule, PICTURED) for rule in RULES), (ALL, 1.0)]


def name(way: str, share: float) -> str:
    """How a way is called in figures and tables."""
    return (
        f"{way} encrypted" if way in (NONE, ALL) else f"{share * 100:g}% encrypted, {LABELS[way]}"
    )


def maps(model: torch.nn.Module, images: Images, seed: int) -> dict[str, NDArray[np.float32]]:
    """Maps of all images, by rule, each float32 (length,); the seed is of the probes."""
    pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
    sizes = [
        gradient(model, pixels[i : i + 1], labels[i : i + 1]).abs() for i in range(len(images))
    ]
    found = {"magnitude": torch.stack(sizes).mean(0).numpy()}
    batch, loss = (pixels, labels), torch.nn.functional.cross_entropy
    by: tuple[Of, Of] = ("labels", "inputs")
    for of in by:
        probes = torch.Generator().manual_seed(seed)
        parts = sensitivity(model, loss, [batch], of=of, random=probes)
        found[of] = np.concatenate([part.numpy().reshape(-1) for part in parts.values()])
    return found


def hidden(scores: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Which coordinates are encrypted: the share with the highest scores, (length,)."""
    out = np.full(scores.size, share == 1)
    if 0 < share < 1:
        out[Select(share).of_map(scores, layout_of(scores.size)).coords] = True
    return out


def audit(images: Images, setting: Setting, progress: Progress = silent) -> Audit:
    """Attack every image in every way; depends on nothing but `images` and `setting`."""
    began = time.perf_counter()
    model = lenet(setting.seed)
    exact = copy.deepcopy(model).double()
    points: list[Point] = []
    guesses, shape = {}, (3, *images.pixels.shape[2:])
    # The model is too small for more, and sums come out the same on every machine like this one.
    with torch_threads(1):
        scores: dict[str, NDArray[Any]] = dict(maps(model, images, setting.seed))
        for i in range(len(images)):
            pixels = torch.from_numpy(images.pixels[i : i + 1]).double()
            label = torch.from_numpy(images.labels[i : i + 1])
            noise, draws = (np.random.default_rng([setting.seed, i, kind]) for kind in (0, 1))
            values = setting.channel.seen(gradient(exact, pixels, label).numpy(), noise)
            scores["random"] = draws.permutation(values.size)
            for way, share in setting.points:
                done = len(points), len(images) * len(setting.points)
                progress(*done, f"image {i + 1}: {way} {share:.0%}")
                seen = Seen(values, ~hidden(scores.get(way, scores["random"]), share))
                guess = invert(exact, seen, shape, CLASSES, setting.attack, (setting.seed, i))
                found, original = guess.image, images.pixels[i]
                near = ssim(found, original), float(np.mean((found - original) ** 2))
                right = guess.label == int(images.labels[i])
                points.append(Point(way, share, i, *near, guess.loss, guess.evaluations, right))
                guesses[way, share, i] = found
    return Audit(setting, images, tuple(points), guesses, time.perf_counter() - began)

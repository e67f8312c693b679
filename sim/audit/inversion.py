"""Gradient inversion: from the gradient that a server sees to the image it was computed of.

    least over x', y' of   sum over the coordinates in clear of (g_m(x', softmax(y')) - g_m)^2

by L-BFGS, from several starts. What is kept is the start whose gradient fits best, since that is all an
attacker can tell; the original takes no part in the choice.

The attack is DLG with three changes, each in its favour: float64 instead of float32, a line search
that cannot diverge (strong Wolfe), and starts around mid-grey, where images are, instead of N(0, 1).
Whoever attacks may know better still: what this finds is the least that leaks.

Source: Zhu et al., "Deep Leakage from Gradients" (NeurIPS 2019), Alg. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flhe.coding.base import Plain, State
from flhe.coding.clip import Clip
from flhe.coding.quantize import Quantize
from flhe.errors import ConfigError
from flhe_lab.bench.federation import layout_of

START_MEAN, START_SIGMA = 0.5, 0.1
"""Of the pixels that an attack starts from, in [0, 1]; what nothing tells of stays as it was."""


@dataclass(frozen=True, slots=True)
class Attack:
    """How much is put into an attack."""

    steps: int = 600  # Evaluations of the gradient, for each start
    restarts: int = 2  # Starts
    history: int = 100  # Pairs of steps that L-BFGS remembers


@dataclass(frozen=True, slots=True)
class Channel:
    """What happens to the part in clear before the server sees it."""

    bits: int = 16  # Quantization, to nearest, from the gradient's largest absolute value down
    noise: float = 0.0  # Scale b of Laplace noise on every value; 0 for none

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ConfigError(f"noise={self.noise}: the scale must be at least 0")
        Quantize(self.bits)

    def seen(self, values: NDArray[np.float64], noise: np.random.Generator) -> NDArray[np.float64]:
        """Values (length,) as they arrive; `noise` gives simulated noise, not a secret."""
        if self.noise:
            values = values + noise.laplace(scale=self.noise, size=values.size)
        if not values.any():
            return values
        clip = Clip(float(np.abs(values).max()))
        quantize, state = Quantize(self.bits, rounding="nearest"), clip.init(layout_of(values.size))
        plain = Plain(values.astype(np.float32), np.empty(0, np.int64))
        sent = quantize.encode(clip.encode(plain, state)[0], State())[0]
        back = clip.decode(quantize.decode(sent, [0], State())[0], [0], state)[0]
        return np.asarray(back.values, np.float64)


@dataclass(frozen=True, slots=True)
class Seen:
    """One example's gradient at the server."""

    values: NDArray[np.float64] = field(repr=False)
    """The gradient (length,), in the order of the parameters; what is encrypted is ignored."""
    clear: NDArray[np.bool_] = field(repr=False)  # Which coordinates are in clear, (length,)


@dataclass(frozen=True, slots=True)
class Guess:
    """What an attack came to."""

    image: NDArray[np.float64] = field(repr=False)  # Planes, height, width; in [0, 1]
    label: int  # The class it takes the image for
    loss: float  # Squared distance of the gradients, over what is in clear
    evaluations: int  # Of the gradient, over all starts


def gradient(model: nn.Module, images: Tensor, targets: Tensor, *, graph: bool = False) -> Tensor:
    """Gradient of the mean cross entropy, flat (length,); targets are classes or probabilities."""
    loss = nn.functional.cross_entropy(model(images), targets)
    parts = torch.autograd.grad(loss, list(model.parameters()), create_graph=graph)
    return torch.cat([part.reshape(-1) for part in parts])


def invert(
    model: nn.Module,
    seen: Seen,
    shape: tuple[int, int, int],
    classes: int,
    attack: Attack,
    seed: int | tuple[int, ...],
) -> Guess:
    """Look for the image whose gradient is what was seen.

    Where nothing is in clear there is nothing to fit, and the guess is the first start.

    `model` is float64, as the server knows it; `shape` is planes, height and width of the image; there
    are so many `classes`; `seed` is of the starts.
    """
    clear = torch.from_numpy(np.flatnonzero(seen.clear))
    goal = torch.from_numpy(seen.values)[clear]
    random = torch.Generator().manual_seed(
        int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    )

    def from_one_start() -> Guess:
        start = torch.randn(math.prod(shape), dtype=torch.float64, generator=random)
        pixels = (START_MEAN + START_SIGMA * start).requires_grad_()
        label = torch.randn(classes, dtype=torch.float64, generator=random).requires_grad_()

        def ours() -> Tensor:
            guess = pixels.reshape(1, *shape), label.softmax(0)[None]
            return gradient(model, *guess, graph=True)[clear]

        best, losses = fit([pixels, label], ours, goal, attack)
        image = best[0].clamp(0, 1).reshape(shape).numpy()
        return Guess(image, int(best[1].argmax()), min(losses), len(losses) - 1)

    guesses = [from_one_start() for _ in range(attack.restarts)]
    best = min(guesses, key=lambda guess: guess.loss)
    return replace(best, evaluations=sum(guess.evaluations for guess in guesses))


def fit(
    free: list[Tensor], ours: Callable[[], Tensor], goal: Tensor, attack: Attack
) -> tuple[list[Tensor], list[float]]:
    """Change `free` until `ours()` is near `goal`; gives the values that fit best, and all losses."""
    best, losses = [each.detach().clone() for each in free], [math.inf]

    def distance() -> Tensor:
        optimizer.zero_grad()
        loss = (ours() - goal).square().sum()
        loss.backward(inputs=free)  # type: ignore[no-untyped-call]
        if loss.item() < min(losses):
            best[:] = [each.detach().clone() for each in free]
        losses.append(loss.item())
        return loss

    optimizer = torch.optim.LBFGS(
        free,
        max_iter=attack.steps,
        max_eval=attack.steps,
        history_size=attack.history,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    optimizer.step(distance)  # type: ignore[no-untyped-call]
    return best, losses

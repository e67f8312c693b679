"""Optimizers of gradients: PyTorch's results, and what is taken over from an optimizer of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.training.optimizer import Optimizer

STEPS, LENGTH = 200, 240
EPSILON = float(np.finfo(np.float32).eps)

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "dampening": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}),
    "nesterov": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.8, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adam, other betas": (torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop, alpha": (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.9, "eps": 1e-5}),
    "rmsprop, momentum": (torch.optim.RMSprop, {"momentum": 0.9}),
    "rmsprop, centered": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
}


def gradient(step: int) -> NDArray[np.float32]:
    """Random gradients, each weight's of a size of its own, 1e-15 to 1e15; a third of them zero."""
    rng = np.random.default_rng(step)
    size = 10.0 ** ((np.arange(LENGTH) % 31) - 15)
    values = rng.standard_normal(LENGTH) * size
    values[rng.random(LENGTH) < 1 / 3] = 0
    values[0] = 0  # never anything
    return values.astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("case", CASES)
def test_200_steps_give_what_torch_gives(case: str, decay: float, dtype: torch.dtype) -> None:
    """To one rounding of float32 in each step, as a share of the way that a weight has gone."""
    kind, options = CASES[case]
    weights = torch.nn.Parameter(torch.linspace(-2, 2, LENGTH, dtype=dtype))
    theirs = kind([weights], **options)
    ours = Optimizer.like(theirs, decay=decay)
    rates = torch.optim.lr_scheduler.LambdaLR(theirs, lambda t: 1 / (1 + decay * t))
    model = weights.detach().numpy().copy()
    moments = ours.init(LENGTH)
    way = np.abs(model).astype(np.float64)
    for step in range(1, STEPS + 1):
        mean = gradient(step)
        weights.grad = torch.from_numpy(mean).to(dtype)
        theirs.step()
        rates.step()
        change, moments = ours.step(mean, moments, step)
        model = model + change
        way += np.abs(change)
        apart = np.abs(model - weights.detach().numpy())
        assert np.all(apart <= step * EPSILON * way)
    assert model.dtype == weights.detach().numpy().dtype
    assert np.count_nonzero(np.abs(model - np.linspace(-2, 2, LENGTH)) > 1e-6) > LENGTH / 2
    assert model[0] == -2


def test_a_variance_that_rounding_takes_below_zero_is_none() -> None:
    """A gradient that never changes has no deviation: torch divides by NaN sooner or later."""
    optimizer = Optimizer("rmsprop", centered=True, alpha=0.3)
    mean = (np.arange(1000, dtype=np.float32) + 1) / 3
    moments = optimizer.init(1000)
    for step in range(1, 100):
        change, moments = optimizer.step(mean, moments, step)
        assert np.all(np.isfinite(change))
        assert np.all(change < 0)
    wide = {name: vector.astype(np.float64) for name, vector in moments.items()}
    square = 0.3 * wide["square_avg"] + (1 - 0.3) * mean.astype(np.float64) ** 2
    assert np.any(square < (0.3 * wide["grad_avg"] + (1 - 0.3) * mean.astype(np.float64)) ** 2)


def made(kind: Any, **options: Any) -> Any:
    return kind([torch.nn.Parameter(torch.zeros(2))], **options)


def grouped(**second: Any) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    groups[1].update(second)
    return torch.optim.Adam(groups, lr=0.01)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: made(torch.optim.AdamW), "AdamW.*give a torch.optim.SGD, Adam or RMSprop"),
        (lambda: made(torch.optim.Adam, amsgrad=True), "amsgrad=True.*leave it at False"),
        (lambda: made(torch.optim.Adam, weight_decay=0.1), "weight_decay=0.1.*leave it at 0"),
        (lambda: made(torch.optim.SGD, maximize=True), "maximize=True"),
        (
            lambda: made(torch.optim.Adam, decoupled_weight_decay=True),
            "decoupled_weight_decay=True",
        ),
        (lambda: grouped(lr=0.1), "param groups differ in lr"),
        (lambda: grouped(betas=(0.5, 0.5)), "param groups differ in betas"),
        (lambda: made(torch.optim.SGD, momentum=1.5), "momentum must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_like_torchs_is_refused_by_name(optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimizer.like(optimizer())  # made here: torch takes long to make the first one


def test_a_schedule_and_options_that_do_not_exist_yet_are_refused() -> None:
    optimizer = made(torch.optim.Adam)
    optimizer.param_groups[0]["novelty"] = None
    with pytest.raises(ConfigError, match=r"novelty=None.*leave it out"):
        Optimizer.like(optimizer)
    optimizer = made(torch.optim.SGD)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(ConfigError, match="a schedule changes its learning rate"):
        Optimizer.like(optimizer)


def test_like_reads_what_would_be_done_now() -> None:
    assert Optimizer.like(made(torch.optim.Adam)) == Optimizer("adam")
    assert Optimizer.like(grouped()) == Optimizer("adam", lr=0.01)
    assert Optimizer.like(grouped(foreach=True)) == Optimizer("adam", lr=0.01)
    optimizer = made(torch.optim.RMSprop, alpha=0.9, momentum=0.5, centered=True)
    optimizer.param_groups[0]["lr"] = 0.5  # set by hand, after it was made
    like = Optimizer.like(optimizer, decay=1e-6)
    assert like == Optimizer("rmsprop", lr=0.5, alpha=0.9, momentum=0.5, centered=True, decay=1e-6)
    rate = torch.tensor(0.25)
    assert Optimizer.like(made(torch.optim.Adam, lr=rate)).lr == 0.25

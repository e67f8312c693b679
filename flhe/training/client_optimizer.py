"""ClientOptimizer: how every client steps with the mean gradient of a round (FedSGD).

The optimizer's state lives on the clients, the same on each, and late joiners receive it with the
model. The rules are those of torch.optim, under its names; the learning
rate of step t, from 1, is lr / (1 + decay * (t - 1)).

With g the gradient, t the step, from 1, and lr the step's learning rate:

    sgd      b = g in the first step, then momentum * b + (1 - dampening) * g
             change = -lr * b                            nesterov: -lr * (g + momentum * b)
    adam     m = beta_1 * m + (1 - beta_1) * g
             v = beta_2 * v + (1 - beta_2) * g**2
             change = -lr / (1 - beta_1**t) * m / (sqrt(v) / sqrt(1 - beta_2**t) + eps)
    rmsprop  v = alpha * v + (1 - alpha) * g**2
             a = alpha * a + (1 - alpha) * g             centered: v - a**2 takes the place of v below
             b = momentum * b + g / (sqrt(v) + eps)
             change = -lr * b

Each gives the change and the next moments, under PyTorch's names for them. Where rounding takes
v - a**2 below zero, PyTorch gives NaN and this takes zero.

Why not torch itself: its last bits differ between processors and builds, and all clients must come to
the same model, to the bit (see `flhe.training.optimizer_base`). Ours differ from torch's by rounding
alone, as long as float32 can hold the square of a gradient. Beyond, at 1.8e19, torch's Adam and
RMSprop stop moving a weight for good, and these go on from the largest number that it can hold.

Source: BatchCrypt (Zhang et al., USENIX ATC 2020), Alg. 1 and Sec. 5; PyTorch 2, torch.optim; Adam:
Kingma and Ba (ICLR 2015); for `decay`, Keras' rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from flhe.errors import ConfigError
from flhe.training.optimizer_base import BaseOptimizer, Moments, Rule, Step, Wide, power

Name = Literal["sgd", "adam", "rmsprop"]


def _rate(o: Any, step: int) -> float:
    rate: float = o.lr / (1 + o.decay * (step - 1))
    return rate


def _sgd(g: Wide, old: Moments, step: int, o: Any) -> Step:
    if not o.momentum:
        return -_rate(o, step) * g, {}
    # As in PyTorch, the first gradient is not dampened: a buffer starts as it, not from zero.
    b = g if step == 1 else o.momentum * old["momentum_buffer"] + (1 - o.dampening) * g
    return -_rate(o, step) * (g + o.momentum * b if o.nesterov else b), {"momentum_buffer": b}


def _adam(g: Wide, old: Moments, step: int, o: Any) -> Step:
    beta_1, beta_2 = o.betas
    m = beta_1 * old["exp_avg"] + (1 - beta_1) * g
    v = beta_2 * old["exp_avg_sq"] + (1 - beta_2) * (g * g)
    root = np.sqrt(v) / math.sqrt(1 - power(beta_2, step)) + o.eps
    change = -(_rate(o, step) / (1 - power(beta_1, step))) * m / root
    return change, {"exp_avg": m, "exp_avg_sq": v}


def _rmsprop(g: Wide, old: Moments, step: int, o: Any) -> Step:
    square = o.alpha * old["square_avg"] + (1 - o.alpha) * (g * g)
    after, variance = {"square_avg": square}, square
    if o.centered:
        a = after["grad_avg"] = o.alpha * old["grad_avg"] + (1 - o.alpha) * g
        variance = np.maximum(square - a * a, 0.0)
    along = g / (np.sqrt(variance) + o.eps)
    if o.momentum:
        along = after["momentum_buffer"] = o.momentum * old["momentum_buffer"] + along
    return -_rate(o, step) * along, after


RULES: dict[str, Rule] = {
    "sgd": Rule(
        _sgd,
        {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "decay": 0.0},
        {"momentum_buffer": "momentum"},
    ),
    "adam": Rule(
        _adam,
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.0},
        {"exp_avg": "", "exp_avg_sq": ""},
    ),
    "rmsprop": Rule(
        _rmsprop,
        {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "decay": 0.0},
        {"square_avg": "", "momentum_buffer": "momentum", "grad_avg": "centered"},
    ),
}
"""Every optimizer with the parameters that it has, PyTorch's defaults and its names of moments."""
DEFAULTS = {name: rule.defaults for name, rule in RULES.items()}


@dataclass(frozen=True, slots=True)
class ClientOptimizer(BaseOptimizer):
    """One of the rules above; None takes PyTorch's default for it.

    Raises ConfigError: an unknown name, a parameter out of range, or one that the optimizer does not
    have.

    Parameters
    ----------
    name : str
        "sgd", "adam" or "rmsprop".
    lr : float, optional
        Learning rate, 1e-30 to 1e30; 1e-3, for rmsprop 1e-2.
    momentum : float, optional
        Of sgd and rmsprop, at least 0 and less than 1; 0.
    dampening : float, optional
        Of sgd, at least 0 and less than 1; 0.
    nesterov : bool, optional
        Nesterov's momentum, of sgd; needs momentum and no dampening.
    betas : tuple[float, float], optional
        Decay of adam's moments, at least 0 and less than 1 each; 0.9 and 0.999.
    eps : float, optional
        Added to the root of adam's and rmsprop's, 1e-15 to 1e30; 1e-8.
    alpha : float, optional
        Decay of rmsprop's moments, at least 0 and less than 1; 0.99.
    centered : bool, optional
        Divide by an estimate of the deviation, for rmsprop.
    decay : float, optional
        How the learning rate falls step by step, 0 to 1e30; 0 is not at all.
    """

    takes: ClassVar[Literal["gradient"]] = "gradient"
    rules = RULES
    # Below 1e-15, `eps` would rule where float32 has lost the square of a gradient.
    ranges: ClassVar = {"lr": (1e-30, 1e30), "eps": (1e-15, 1e30), "decay": (0.0, 1e30)}
    kind = "client optimizer"
    counts = "step"

    name: Name = "adam"
    lr: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    alpha: float | None = None
    centered: bool | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        BaseOptimizer.__post_init__(self)
        if self.nesterov and (not self.momentum or self.dampening):
            raise ConfigError(
                "ClientOptimizer(nesterov=True): needs a momentum above 0, and no dampening"
            )

    @classmethod
    def like(cls, optimizer: Any, *, decay: float = 0.0) -> ClientOptimizer:
        """The same rule as a torch.optim.SGD, Adam or RMSprop.

        Its learning rate and parameters are taken over, its state and its model's weights are not.

        Raises ConfigError: another optimizer, or an option of it that has no counterpart here, by
        name.
        """
        return cls(**_options_of(optimizer), decay=decay)


# --- what a torch.optim optimizer was made with ---

NEUTRAL: dict[str, Any] = {
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}
"""Options that have no counterpart here, with the values that change nothing."""

IMPLEMENTATION = ("params", "foreach", "fused")
"""What a param group holds beside its rule: the weights, and how torch computes."""


def _options_of(optimizer: Any) -> dict[str, Any]:
    """Name and parameters of an optimizer of torch as it would step now, read without importing torch.

    Its param groups are read: a learning rate that was set after it was made counts. ConfigError for
    another optimizer, param groups that differ, an option that has no counterpart.
    """
    kind = type(optimizer)
    name = kind.__name__.lower()
    if kind.__module__.partition(".")[0] != "torch" or name not in RULES:
        raise ConfigError(
            f"ClientOptimizer.like({kind.__module__}.{kind.__qualname__}): give a torch.optim.SGD, "
            "Adam or RMSprop itself; others, and classes derived from these, have rules of their own"
        )
    groups = [_options(kind.__name__, name, group) for group in optimizer.param_groups]
    for other in groups[1:]:
        if odd := [key for key in groups[0] if other[key] != groups[0][key]]:
            raise ConfigError(
                f"torch.optim.{kind.__name__}: its param groups differ in {odd[0]}; every weight of "
                "the model is stepped alike here, give them one value"
            )
    return {"name": name, **groups[0]}


def _options(kind: str, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one param group."""
    if "initial_lr" in group:
        raise ConfigError(
            f"torch.optim.{kind}: a schedule changes its learning rate; leave it out, and give a "
            "constant rate, or decay"
        )
    found = {}
    for key, value in group.items():
        if key in DEFAULTS[name]:
            found[key] = _number(value)
        elif key not in IMPLEMENTATION and (key not in NEUTRAL or value != NEUTRAL[key]):
            mend = f"leave it at {NEUTRAL[key]!r}" if key in NEUTRAL else "leave it out"
            raise ConfigError(
                f"torch.optim.{kind}({key}={value!r}): {name} here has no {key}; {mend}"
            )
    return found


def _number(value: Any) -> Any:
    """A number, or a pair of them, out of what may be a tensor of one value."""
    if isinstance(value, tuple | list):
        return tuple(_number(part) for part in value)
    return value.item() if hasattr(value, "item") else value

"""Rules by which a mean becomes a change: Flower's for updates, PyTorch's for gradients.

With d the mean update and r the round, from 1:

    fedavg       change = d
    fedavgm      b = momentum * b + d                   change = eta * b
    fedadagrad   v = v + d**2                           change = eta * d / (sqrt(v) + tau)
    fedadam      m = beta_1 * m + (1 - beta_1) * d
                 v = beta_2 * v + (1 - beta_2) * d**2   change = eta_r * m / (sqrt(v) + tau)
    fedyogi      m as fedadam's
                 v = v - (1 - beta_2) * d**2 * sign(v - d**2)
                                                        change = eta * m / (sqrt(v) + tau)

    eta_r = eta * sqrt(1 - beta_2**(r + 1)) / (1 - beta_1**(r + 1))

With g the mean gradient (FedSGD), t the step, from 1, and rate = lr / (1 + decay * (t - 1)):

    sgd      b = g in the first step, then momentum * b + (1 - dampening) * g
             change = -rate * b                          nesterov: -rate * (g + momentum * b)
    adam     m = beta_1 * m + (1 - beta_1) * g
             v = beta_2 * v + (1 - beta_2) * g**2
             change = -rate / (1 - beta_1**t) * m / (sqrt(v) / sqrt(1 - beta_2**t) + eps)
    rmsprop  v = alpha * v + (1 - alpha) * g**2
             a = alpha * a + (1 - alpha) * g             centered: v - a**2 takes the place of v below
             b = momentum * b + g / (sqrt(v) + eps)
             change = -rate * b

Ours differ from torch's by rounding alone, as long as float32 can hold the square of a gradient.
Beyond, at 1.8e19, torch's Adam and RMSprop stop moving a weight for good, and these go on from the
largest number that it can hold. Where rounding takes v - a**2 below zero, torch gives NaN and this
takes zero.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Alg. 2; Hsu et al., "Measuring
the Effects of Non-Identical Data Distribution" (2019), for fedavgm. Defaults, bias correction with
r + 1 and moments that start from zero are those of Flower 1.41's strategies. BatchCrypt (Zhang et al.,
USENIX ATC 2020), Alg. 1 and Sec. 5; PyTorch 2, torch.optim; Adam: Kingma and Ba (ICLR 2015); for
`decay`, Keras' rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
"""What a block is computed in: a float32 moment is then rounded once a step."""
Moments = Mapping[str, Wide]
Step = tuple[Wide, Moments]
"""The change of the model, and the next moments, of one block."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Parameters
    ----------
    block : callable or None
        (mean, moments, number of the step, the optimizer) -> `Step`; None adds the mean as it is.
    defaults : dict[str, Any]
        Every parameter that it has, with its default.
    moments : dict[str, str]
        Name of each vector that it keeps -> the parameter without which it does not; "" is always.
    gradients : bool
        Whether the mean is of gradients, not of what training changed.
    """

    block: Callable[[Wide, Moments, int, Any], Step] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, str] = field(default_factory=dict)
    gradients: bool = False


def power(base: float, exponent: int) -> float:
    """`base` to a power of 0 or more by squaring: libraries' pow() differ in the last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _fedavgm(d: Wide, old: Moments, _: int, o: Any) -> Step:
    if not o.momentum:
        return o.eta * d, {}
    b = o.momentum * old["momentum"] + d
    return o.eta * b, {"momentum": b}


def _fedadagrad(d: Wide, old: Moments, _: int, o: Any) -> Step:
    v = old["v"] + d * d
    return o.eta * (d / (np.sqrt(v) + o.tau)), {"v": v}


def _fedadam(d: Wide, old: Moments, round_: int, o: Any) -> Step:
    one, two = (power(beta, round_ + 1) for beta in (o.beta_1, o.beta_2))
    eta = o.eta * math.sqrt(1 - two) / (1 - one)
    m = o.beta_1 * old["m"] + (1 - o.beta_1) * d
    v = o.beta_2 * old["v"] + (1 - o.beta_2) * (d * d)
    return eta * (m / (np.sqrt(v) + o.tau)), {"m": m, "v": v}


def _fedyogi(d: Wide, old: Moments, _: int, o: Any) -> Step:
    square = d * d
    m = o.beta_1 * old["m"] + (1 - o.beta_1) * d
    v = old["v"] - (1 - o.beta_2) * square * np.sign(old["v"] - square)
    return o.eta * (m / (np.sqrt(v) + o.tau)), {"m": m, "v": v}


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


_BOTH = {"m": "", "v": ""}
RULES: dict[str, Rule] = {
    "fedavg": Rule(),
    "fedavgm": Rule(_fedavgm, {"eta": 1.0, "momentum": 0.0}, {"momentum": "momentum"}),
    "fedadagrad": Rule(_fedadagrad, {"eta": 0.1, "tau": 1e-3}, {"v": ""}),
    "fedadam": Rule(_fedadam, {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, _BOTH),
    "fedyogi": Rule(_fedyogi, {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, _BOTH),
    "sgd": Rule(
        _sgd,
        {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "decay": 0.0},
        {"momentum_buffer": "momentum"},
        gradients=True,
    ),
    "adam": Rule(
        _adam,
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.0},
        {"exp_avg": "", "exp_avg_sq": ""},
        gradients=True,
    ),
    "rmsprop": Rule(
        _rmsprop,
        {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "decay": 0.0},
        {"square_avg": "", "momentum_buffer": "momentum", "grad_avg": "centered"},
        gradients=True,
    ),
}
"""Every optimizer, with Flower's or PyTorch's defaults and PyTorch's names of moments."""

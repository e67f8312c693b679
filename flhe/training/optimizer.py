"""ServerOptimizer: what is made of a round's mean update before it is added to the model.

The server cannot do this, it never sees the mean; so every client does it, on the same mean, and
must come to the same bits. With d the mean update and r the round, from 1:

    fedavg       change = d
    fedavgm      b = momentum * b + d                   change = eta * b
    fedadagrad   v = v + d**2                           change = eta * d / (sqrt(v) + tau)
    fedadam      m = beta_1 * m + (1 - beta_1) * d
                 v = beta_2 * v + (1 - beta_2) * d**2   change = eta_r * m / (sqrt(v) + tau)
    fedyogi      m as fedadam's
                 v = v - (1 - beta_2) * d**2 * sign(v - d**2)
                                                        change = eta * m / (sqrt(v) + tau)

    eta_r = eta * sqrt(1 - beta_2**(r + 1)) / (1 - beta_1**(r + 1))

The same bits everywhere: see `flhe.training.optimizer_base`. Where clients send gradients, they step
with a `ClientOptimizer` instead.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Alg. 2; Hsu et al., "Measuring
the Effects of Non-Identical Data Distribution" (2019), for fedavgm. Defaults, bias correction with
r + 1 and moments that start from zero are those of Flower 1.41's strategies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from flhe.training.optimizer_base import BaseOptimizer, Moments, Rule, Step, Wide, power

Name = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]

BOUNDS = (1e-30, 1e30)
"""Of eta and tau: beyond them float32 has no room left for a change."""


def _momentum(d: Wide, old: Moments, _: int, o: Any) -> Step:
    if not o.momentum:
        return o.eta * d, {}
    b = o.momentum * old["momentum"] + d
    return o.eta * b, {"momentum": b}


def _adagrad(d: Wide, old: Moments, _: int, o: Any) -> Step:
    v = old["v"] + d * d
    return o.eta * (d / (np.sqrt(v) + o.tau)), {"v": v}


def _adam(d: Wide, old: Moments, round_: int, o: Any) -> Step:
    one, two = (power(beta, round_ + 1) for beta in (o.beta_1, o.beta_2))
    eta = o.eta * math.sqrt(1 - two) / (1 - one)
    m = o.beta_1 * old["m"] + (1 - o.beta_1) * d
    v = o.beta_2 * old["v"] + (1 - o.beta_2) * (d * d)
    return eta * (m / (np.sqrt(v) + o.tau)), {"m": m, "v": v}


def _yogi(d: Wide, old: Moments, _: int, o: Any) -> Step:
    square = d * d
    m = o.beta_1 * old["m"] + (1 - o.beta_1) * d
    v = old["v"] - (1 - o.beta_2) * square * np.sign(old["v"] - square)
    return o.eta * (m / (np.sqrt(v) + o.tau)), {"m": m, "v": v}


_BOTH = {"m": "", "v": ""}
RULES: dict[str, Rule] = {
    "fedavg": Rule(),
    "fedavgm": Rule(_momentum, {"eta": 1.0, "momentum": 0.0}, {"momentum": "momentum"}),
    "fedadagrad": Rule(_adagrad, {"eta": 0.1, "tau": 1e-3}, {"v": ""}),
    "fedadam": Rule(_adam, {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, _BOTH),
    "fedyogi": Rule(_yogi, {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, _BOTH),
}
DEFAULTS = {name: rule.defaults for name, rule in RULES.items()}
"""Every optimizer with the parameters that it has."""


@dataclass(frozen=True, slots=True)
class ServerOptimizer(BaseOptimizer):
    """One of the rules above; None takes Flower's default for it.

    Raises ConfigError: an unknown name, a parameter out of range, or one that the optimizer does not
    have.

    Parameters
    ----------
    name : str
        "fedavg", "fedavgm", "fedadagrad", "fedadam" or "fedyogi".
    eta : float, optional
        Server learning rate, 1e-30 to 1e30; 1.0 for fedavgm, 0.1 for fedadagrad and fedadam, 0.01
        for fedyogi.
    momentum : float, optional
        Of fedavgm, at least 0 and less than 1. The default, 0, is no momentum.
    beta_1, beta_2 : float, optional
        Decay of the moments m and v of fedadam and fedyogi, at least 0 and less than 1; 0.9 and 0.99.
    tau : float, optional
        Degree of adaptivity, in units of the update, 1e-30 to 1e30; 1e-3.
    """

    takes: ClassVar[Literal["update"]] = "update"
    rules = RULES
    ranges: ClassVar = {"eta": BOUNDS, "tau": BOUNDS}
    kind = "server optimizer"
    counts = "round"

    name: Name = "fedavg"
    eta: float | None = None
    momentum: float | None = None
    beta_1: float | None = None
    beta_2: float | None = None
    tau: float | None = None

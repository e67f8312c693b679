"""Optimizer: how every client turns a round's mean into a change of the model.

The server never sees the mean, so every client computes the step. All must reach the same model,
because members compare keyed digests, and torch's last bits differ between processors and builds.
So a rule uses only +, -, *, /, sqrt and comparisons, one element at a time, which IEEE 754 rounds
uniquely. Powers are repeated products. A block is computed in float64 and rounded to float32 once.
Subnormal numbers become zero, because some programs make the processor flush them. Rules treat all
elements alike, so block boundaries do not matter.

The clients hold the state, the same on each, and late joiners receive it with the model.

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

    sgd      b = momentum * b + g                       change = -rate * b
    adam     m = beta_1 * m + (1 - beta_1) * g
             v = beta_2 * v + (1 - beta_2) * g**2
             change = -rate / (1 - beta_1**t) * m / (sqrt(v) / sqrt(1 - beta_2**t) + eps)
    rmsprop  v = alpha * v + (1 - alpha) * g**2
             b = momentum * b + g / (sqrt(v) + eps)
             change = -rate * b

Ours differ from torch's by rounding only, as long as float32 can hold the square of a gradient.
Beyond, at 1.8e19, torch's Adam and RMSprop stop moving a weight for good; these continue from
float32's largest number.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Alg. 2; Hsu et al., "Measuring
the Effects of Non-Identical Data Distribution" (2019), for fedavgm. Defaults, bias correction with
r + 1 and moments that start from zero are those of Flower's strategies. BatchCrypt (Zhang et
al., USENIX ATC 2020), Alg. 1 and Sec. 5; PyTorch 2, torch.optim; Adam: Kingma and Ba (ICLR 2015);
for `decay`, Keras' rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.wire.fields import Rule as Bound
from flhe.wire.record import Form, Record

Vector = NDArray[np.float32]
Wide = NDArray[np.float64]
"""Type of a block's computation; float32 moments are then rounded once a step."""
Moments = Mapping[str, Wide]
Step = tuple[Wide, Moments]
"""Change of the model, and next moments, of one block."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules.

    Parameters
    ----------
    block : callable or None
        (mean, moments, number of the step, the optimizer) -> `Step`; None adds the mean as it is.
    defaults : dict[str, Any]
        All its parameters with their defaults.
    moments : dict[str, str]
        Name of each kept vector -> the parameter that enables it; "" for always.
    """

    block: Callable[[Wide, Moments, int, Any], Step] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, str] = field(default_factory=dict)

    @property
    def gradients(self) -> bool:
        """True if the mean is of gradients instead of model changes: the rule has a learning rate."""
        return "lr" in self.defaults


def power(base: float, exponent: int) -> float:
    """Return `base` to a power of 0 or more by squaring: libraries' pow() differ in the last bit."""
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
    return float(o.lr / (1 + o.decay * (step - 1)))


def _sgd(g: Wide, old: Moments, step: int, o: Any) -> Step:
    if not o.momentum:
        return -_rate(o, step) * g, {}
    b = o.momentum * old["momentum_buffer"] + g
    return -_rate(o, step) * b, {"momentum_buffer": b}


def _adam(g: Wide, old: Moments, step: int, o: Any) -> Step:
    beta_1, beta_2 = o.betas
    m = beta_1 * old["exp_avg"] + (1 - beta_1) * g
    v = beta_2 * old["exp_avg_sq"] + (1 - beta_2) * (g * g)
    root = np.sqrt(v) / math.sqrt(1 - power(beta_2, step)) + o.eps
    change = -(_rate(o, step) / (1 - power(beta_1, step))) * m / root
    return change, {"exp_avg": m, "exp_avg_sq": v}


def _rmsprop(g: Wide, old: Moments, step: int, o: Any) -> Step:
    square = o.alpha * old["square_avg"] + (1 - o.alpha) * (g * g)
    after = {"square_avg": square}
    along = g / (np.sqrt(square) + o.eps)
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
    "sgd": Rule(_sgd, {"lr": 1e-3, "momentum": 0.0, "decay": 0.0}, {"momentum_buffer": "momentum"}),
    "adam": Rule(
        _adam,
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.0},
        {"exp_avg": "", "exp_avg_sq": ""},
    ),
    "rmsprop": Rule(
        _rmsprop,
        {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "decay": 0.0},
        {"square_avg": "", "momentum_buffer": "momentum"},
    ),
}
"""All optimizers, with Flower's or PyTorch's defaults and PyTorch's names of moments."""

BLOCK = 1 << 14
"""Values in a block: temporaries stay few and in the processor's cache."""

TINY = float(np.finfo(np.float32).tiny)
HUGE = float(np.finfo(np.float32).max)
"""Smallest and largest normal float32."""

Name = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "sgd", "adam", "rmsprop"]
# Beyond these, float32 has no room left for a change.
_Rate = Annotated[float, Bound("a number, 1e-30 to 1e30", lambda value: 1e-30 <= value <= 1e30)]
# Below 1e-15, `eps` would dominate where a gradient's square underflows in float32.
_Eps = Annotated[float, Bound("a number, 1e-15 to 1e30", lambda value: 1e-15 <= value <= 1e30)]
_Decay = Annotated[float, Bound("a number, 0 to 1e30", lambda value: 0 <= value <= 1e30)]
_Unit = Annotated[
    float, Bound("a number, at least 0 and less than 1", lambda value: 0 <= value < 1)
]


@dataclass(frozen=True, slots=True)
class Optimizer(Record):
    """A rule by name, with its parameters; None takes Flower's or PyTorch's default.

    Raises ConfigError: an unknown name, or a parameter that is out of range or not of this rule.

    Parameters
    ----------
    name : str
        Of mean updates, as Flower's strategies: "fedavg", "fedavgm", "fedadagrad", "fedadam" or
        "fedyogi". Of mean gradients, as torch.optim: "sgd", "adam" or "rmsprop".
    eta : float, optional
        Server learning rate, 1e-30 to 1e30; 1.0 for fedavgm, 0.1 for fedadagrad and fedadam, 0.01
        for fedyogi.
    momentum : float, optional
        Of fedavgm, sgd and rmsprop, at least 0 and less than 1. The default, 0, is no momentum.
    beta_1, beta_2 : float, optional
        Decay of the moments m and v of fedadam and fedyogi, at least 0 and less than 1; 0.9 and 0.99.
    tau : float, optional
        Degree of adaptivity, in units of the update, 1e-30 to 1e30; 1e-3.
    lr : float, optional
        Learning rate of sgd, adam and rmsprop, 1e-30 to 1e30; 1e-3, for rmsprop 1e-2.
    betas : tuple[float, float], optional
        Decay of adam's moments, at least 0 and less than 1 each; 0.9 and 0.999.
    eps : float, optional
        Added to the root of adam's and rmsprop's, 1e-15 to 1e30; 1e-8.
    alpha : float, optional
        Decay of rmsprop's moments, at least 0 and less than 1; 0.99.
    decay : float, optional
        Decrease of the learning rate `lr` by step, 0 to 1e30; 0 keeps it constant.
    """

    FORM = Form("optimizer", error=ConfigError)

    name: Name = "fedavg"
    eta: _Rate | None = None
    momentum: _Unit | None = None
    beta_1: _Unit | None = None
    beta_2: _Unit | None = None
    tau: _Rate | None = None
    lr: _Rate | None = None
    betas: tuple[_Unit, _Unit] | None = None
    eps: _Eps | None = None
    alpha: _Unit | None = None
    decay: _Decay | None = None

    def _validate(self) -> None:
        defaults = self._rule.defaults
        for name in (f.name for f in fields(self)[1:]):
            given = getattr(self, name)
            if given is not None and name not in defaults:  # it would have no effect
                raise ConfigError(
                    f"Optimizer({name}={given!r}): {self.name} has no {name}, leave it out"
                )
            if given is None and name in defaults:
                object.__setattr__(self, name, defaults[name])

    @classmethod
    def of(cls, optimizer: Any) -> Optimizer:
        """Return an optimizer of ours unchanged, or the rule of one of torch.optim; FedAvg for None.

        Accepts torch.optim.SGD, Adam and RMSprop (torch is not imported). Takes over the current
        learning rate and parameters, not its state nor its model's weights.

        Raises ConfigError: another optimizer, param groups that differ, or an option without a
        counterpart here, by name.
        """
        if optimizer is None or isinstance(optimizer, Optimizer):
            return optimizer or cls()
        kind = type(optimizer)
        name: Any = kind.__name__.lower()
        ours = name in RULES and RULES[name].gradients
        if kind.__module__.partition(".")[0] != "torch" or not ours:
            raise ConfigError(
                f"Optimizer.of({kind.__module__}.{kind.__qualname__}): give a torch.optim.SGD, "
                "Adam or RMSprop itself; others, and classes derived from these, have rules of "
                "their own"
            )
        groups = [_options(kind.__name__, name, group) for group in optimizer.param_groups]
        for other in groups[1:]:
            if odd := [key for key in groups[0] if other[key] != groups[0][key]]:
                raise ConfigError(
                    f"torch.optim.{kind.__name__}: its param groups differ in {odd[0]}; every weight "
                    "of the model is stepped alike here, so give them one value"
                )
        return cls(name, **groups[0])

    @property
    def _rule(self) -> Rule:
        return RULES[self.name]

    @property
    def gradients(self) -> bool:
        """True if it steps with a mean of gradients instead of model changes."""
        return self._rule.gradients

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the vectors kept from step to step, each as long as the model."""
        kept = self._rule.moments.items()
        return tuple(name for name, needs in kept if not needs or getattr(self, needs))

    def init(self, length: int) -> dict[str, Vector]:
        """Return the moments before the first step: zeros, float32, shape (length,)."""
        return {name: np.zeros(length, np.float32) for name in self.moments}

    def step(
        self,
        mean: Vector,
        moments: Mapping[str, Vector],
        number: int,
        *,
        out: Vector | None = None,
    ) -> tuple[Vector, dict[str, Vector]]:
        """Take one step. Inputs are not modified, unless `out` is one of them.

        All vectors are float32 (length,): the round's mean, finite; moments from `init` or the last
        `step`; and `out` for the change: `mean` itself, to save memory, or another buffer. `number`
        counts from 1: rounds for updates, steps for gradients. Failed rounds are not steps.

        Returns the model's change, clamped to float32's range (for fedavg it is `mean`, whatever
        `out` is), and the next moments in new arrays.

        Raises ProtocolError: a mean or moments of another type or shape, moments of another optimizer,
        a number below 1.
        """
        self._check(mean, moments, out)
        if number < 1:
            raise ProtocolError(f"optimizer {self.name}: steps count from 1, got {number}")
        block = self._rule.block
        if block is None:
            return mean, {}
        change: Vector = np.empty(mean.size, np.float32) if out is None else out
        after: dict[str, Vector] = {name: np.empty(mean.size, np.float32) for name in moments}
        for at in range(0, mean.size, BLOCK):
            part = slice(at, at + BLOCK)
            wide = {name: moments[name][part].astype(np.float64) for name in after}
            step, kept = block(_normal(mean[part].astype(np.float64)), wide, number, self)
            for name in after:
                _store(kept[name], after[name][part])
            _store(step, change[part])
        return change, after

    def _check(self, mean: Vector, moments: Mapping[str, Vector], out: Vector | None) -> None:
        what, names = f"optimizer {self.name}", self.moments
        if set(moments) != set(names):
            raise ProtocolError(
                f"{what} keeps {', '.join(names) or 'no moments'}; the model comes with "
                f"{', '.join(sorted(moments)) or 'none'}: it was trained with another"
            )
        vectors = [mean, *moments.values(), *([] if out is None else [out])]
        if any(v.dtype != np.float32 or v.shape != (mean.size,) for v in vectors):
            raise ProtocolError(f"{what}: mean and moments must be float32 vectors of one length")


def _normal(block: Wide) -> Wide:
    """Set all subnormal float32 values of `block` to zero, in place."""
    block[np.abs(block) < TINY] = 0
    return block


def _store(block: Wide, out: Vector) -> None:
    """Round a block to float32, clamped to its range."""
    out[...] = np.clip(_normal(block), -HUGE, HUGE)


# --- options of a torch.optim optimizer ---

NEUTRAL: dict[str, Any] = {
    "dampening": 0,
    "nesterov": False,
    "centered": False,
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}
"""Options without a counterpart here, with their neutral values."""

IMPLEMENTATION = ("params", "foreach", "fused")
"""Entries of a param group besides its rule: the weights, and torch's implementation."""


def _options(kind: str, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of one param group."""
    if "initial_lr" in group:
        raise ConfigError(
            f"torch.optim.{kind}: a schedule changes its learning rate; leave it out, and give a "
            "constant rate, or decay"
        )
    found = {}
    for key, value in group.items():
        if key in RULES[name].defaults:
            found[key] = _number(value)
        elif key not in IMPLEMENTATION and (key not in NEUTRAL or value != NEUTRAL[key]):
            mend = f"leave it at {NEUTRAL[key]!r}" if key in NEUTRAL else "leave it out"
            raise ConfigError(
                f"torch.optim.{kind}({key}={value!r}): {name} here has no {key}; {mend}"
            )
    return found


def _number(value: Any) -> Any:
    """Return a number or a pair of numbers, also from tensors of one value."""
    if isinstance(value, tuple | list):
        return tuple(_number(part) for part in value)
    return value.item() if hasattr(value, "item") else value

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

The same bits everywhere: see `flhe.rounds.blockwise`. Where clients send gradients, they step with a
`ClientOptimizer` instead.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Alg. 2; Hsu et al., "Measuring
the Effects of Non-Identical Data Distribution" (2019), for fedavgm. Defaults, bias correction with
r + 1 and moments that start from zero are those of Flower 1.41's strategies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from flhe.errors import ConfigError, ProtocolError
from flhe.keys import canonical
from flhe.rounds import blockwise
from flhe.rounds.blockwise import Vector, Wide, power

Name = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]

DEFAULTS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedavgm": {"eta": 1.0, "momentum": 0.0},
    "fedadagrad": {"eta": 0.1, "tau": 1e-3},
    "fedadam": {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "fedyogi": {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
}
"""Every optimizer with the parameters that it has."""

PARAMETERS = ("eta", "momentum", "beta_1", "beta_2", "tau")
SMALLEST, LARGEST = 1e-30, 1e30
"""Bounds of eta and tau: beyond them float32 has no room left for a change."""


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """One of the rules above; None takes Flower's default for it.

    A parameter that the rule does not have stays None, and is refused when given: it would do nothing.

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

    Raises
    ------
    ConfigError
        An unknown name, a parameter out of range, or one that the optimizer does not have.
    """

    takes: ClassVar[Literal["update"]] = "update"
    """What it makes the change of: the mean of what training changed."""

    name: Name = "fedavg"
    eta: float | None = None
    momentum: float | None = None
    beta_1: float | None = None
    beta_2: float | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in DEFAULTS:
            raise ConfigError(
                f"ServerOptimizer(name={self.name!r}): use one of {', '.join(DEFAULTS)}"
            )
        defaults = DEFAULTS[self.name]
        for name in PARAMETERS:
            given = getattr(self, name)
            if name in defaults:
                value = _checked(name, defaults[name] if given is None else given)
                object.__setattr__(self, name, value)
            elif given is not None:
                raise ConfigError(
                    f"ServerOptimizer({name}={given!r}): {self.name} has no {name}, leave it out"
                )

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the vectors that it keeps from round to round, each as long as the update."""
        if self.name == "fedavgm":
            return ("momentum",) if self.momentum else ()
        return {"fedavg": (), "fedadagrad": ("v",)}.get(self.name, ("m", "v"))

    def init(self, length: int) -> dict[str, Vector]:
        """Moments before the first round: zeros, float32, shape (length,)."""
        return {name: np.zeros(length, np.float32) for name in self.moments}

    def step(
        self,
        mean: Vector,
        moments: Mapping[str, Vector],
        round_: int,
        *,
        out: Vector | None = None,
    ) -> tuple[Vector, dict[str, Vector]]:
        """One round. Inputs are not modified, unless `out` is one of them.

        Parameters
        ----------
        mean : NDArray[float32]
            The round's mean update, finite, shape (length,).
        moments : mapping of str to NDArray[float32]
            What `init` or the last round's `step` gave, shape (length,) each.
        round_ : int
            The round, from 1.
        out : NDArray[float32], optional
            Where the change goes, shape (length,): `mean` itself, to save its size in memory, or
            memory of its own.

        Returns
        -------
        change : NDArray[float32]
            What to add to the model, shape (length,). For fedavg it is `mean`, whatever `out` is.
        moments : dict[str, NDArray[float32]]
            The next moments, in new arrays.

        Raises
        ------
        ProtocolError
            A mean or moments of another type or shape, moments of another optimizer, a round below 1.
        """
        blockwise.check(f"server optimizer {self.name}", self.moments, mean, moments, out)
        if round_ < 1:
            raise ProtocolError(f"server optimizer: round {round_}, rounds count from 1")
        if self.name == "fedavg":
            return mean, {}
        eta = self._eta(round_)

        def rule(delta: Wide, old: Mapping[str, Wide]) -> tuple[Wide, Mapping[str, Wide]]:
            wide = self._decayed(delta, old)
            return eta * self._direction(delta, wide), wide

        return blockwise.run(rule, mean, moments, out)

    def parameters(self) -> dict[str, str]:
        """Name and parameters for canonical CBOR, floats as exact text."""
        values = {name: self._value(name).hex() for name in DEFAULTS[self.name]}
        return {"name": self.name, **values}

    @classmethod
    def from_parameters(cls, obj: object) -> ServerOptimizer:
        """Inverse of `parameters`.

        Raises
        ------
        ProtocolError
            Anything that `parameters` does not write.
        """
        name = obj.get("name") if isinstance(obj, dict) else None
        if type(name) is not str or name not in DEFAULTS:
            raise ProtocolError("server optimizer: malformed, or unknown to this version of flhe")
        kinds = {"name": str, **dict.fromkeys(DEFAULTS[name], str)}
        fields = canonical.record(obj, "server optimizer", kinds)
        try:
            values = {key: float.fromhex(fields[key]) for key in DEFAULTS[name]}
            optimizer = cls(name, **values)  # type: ignore[arg-type]  # it is one of DEFAULTS
        except (ValueError, OverflowError) as error:  # ConfigError is a ValueError
            why = str(error) if isinstance(error, ConfigError) else "a parameter is not a number"
            raise ProtocolError(f"server optimizer: {why}") from None
        if optimizer.parameters() != fields:  # "1.0", "-0x0.0p+0" and the like
            raise ProtocolError("server optimizer: not written as flhe writes it")
        return optimizer

    def _value(self, name: str) -> float:
        """A parameter that this optimizer has."""
        value: float = getattr(self, name)
        return value

    def _eta(self, round_: int) -> float:
        """The round's learning rate."""
        eta = self._value("eta")
        if self.name != "fedadam":
            return eta
        beta_1, beta_2 = self._value("beta_1"), self._value("beta_2")
        return eta * math.sqrt(1 - power(beta_2, round_ + 1)) / (1 - power(beta_1, round_ + 1))

    def _decayed(self, delta: Wide, old: Mapping[str, Wide]) -> dict[str, Wide]:
        """The next moments of one block."""
        if not old:
            return {}
        if self.name == "fedavgm":
            return {"momentum": self._value("momentum") * old["momentum"] + delta}
        square = delta * delta
        if self.name == "fedadagrad":
            return {"v": old["v"] + square}
        beta_1, beta_2 = self._value("beta_1"), self._value("beta_2")
        m = beta_1 * old["m"] + (1 - beta_1) * delta
        if self.name == "fedadam":
            return {"m": m, "v": beta_2 * old["v"] + (1 - beta_2) * square}
        sign = np.sign(old["v"] - square)
        return {"m": m, "v": old["v"] - (1 - beta_2) * square * sign}

    def _direction(self, delta: Wide, moments: Mapping[str, Wide]) -> Wide:
        """What one block's change is the learning rate times."""
        if self.name == "fedavgm":
            return moments.get("momentum", delta)
        along = moments.get("m", delta)
        direction: Wide = along / (np.sqrt(moments["v"]) + self._value("tau"))
        return direction


def _checked(name: str, value: object) -> float:
    """`value` as a float within the range of the parameter `name`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"ServerOptimizer({name}={value!r}): must be a number")
    if name in ("eta", "tau"):
        if not SMALLEST <= value <= LARGEST:  # false for NaN
            raise ConfigError(
                f"ServerOptimizer({name}={value}): must lie between {SMALLEST} and {LARGEST}"
            )
    elif not 0 <= value < 1:
        raise ConfigError(f"ServerOptimizer({name}={value}): must be at least 0 and less than 1")
    return float(value) + 0.0  # one zero: -0.0 would be equal, and hash to something else

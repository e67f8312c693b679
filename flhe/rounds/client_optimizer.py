"""ClientOptimizer: how every client steps with the mean gradient of a round (FedSGD).

The optimizer's state lives on the clients, the same on each, and late joiners receive it with the
model. The rules are those of torch.optim, under its names (see `flhe.rounds.torch_rules`); the learning
rate of step t, from 1, is lr / (1 + decay * (t - 1)).

Why not torch itself: its last bits differ between processors and builds, and all clients must come to
the same model, to the bit (see `flhe.rounds.blockwise`). Ours differ from torch's by rounding alone, as
long as float32 can hold the square of a gradient. Beyond, at 1.8e19, torch's Adam and RMSprop stop
moving a weight for good, and these go on from the largest number that it can hold.

Source: BatchCrypt (Zhang et al., USENIX ATC 2020), Alg. 1 and Sec. 5; PyTorch 2, torch.optim; for
`decay`, Keras' rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from flhe.errors import ConfigError, ProtocolError
from flhe.keys import canonical
from flhe.rounds import blockwise, torch_rules
from flhe.rounds.blockwise import Vector, Wide

Name = Literal["sgd", "adam", "rmsprop"]

DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "decay": 0.0},
    "adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.0},
    "rmsprop": {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "momentum": 0.0,
        "centered": False,
        "decay": 0.0,
    },
}
"""Every optimizer with the parameters that it has, and PyTorch's defaults for them."""

PARAMETERS = (
    "lr", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "centered", "decay",
)  # fmt: skip

RANGES = {"lr": (1e-30, 1e30), "eps": (1e-15, 1e30), "decay": (0.0, 1e30)}
"""Least and most. Below 1e-15, `eps` would rule where float32 has lost the square of a gradient."""


@dataclass(frozen=True, slots=True)
class ClientOptimizer:
    """One of the rules above; None takes PyTorch's default for it.

    A parameter that the rule does not have stays None, and is refused when given: it would do nothing.

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

    Raises
    ------
    ConfigError
        An unknown name, a parameter out of range, or one that the optimizer does not have.
    """

    takes: ClassVar[Literal["gradient"]] = "gradient"
    """What it makes the change of: the mean of what clients computed from a batch."""

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
        if not isinstance(self.name, str) or self.name not in DEFAULTS:
            raise ConfigError(
                f"ClientOptimizer(name={self.name!r}): use one of {', '.join(DEFAULTS)}"
            )
        defaults = DEFAULTS[self.name]
        for name in PARAMETERS:
            given = getattr(self, name)
            if name in defaults:
                value = _checked(name, defaults[name] if given is None else given)
                object.__setattr__(self, name, value)
            elif given is not None:
                raise ConfigError(
                    f"ClientOptimizer({name}={given!r}): {self.name} has no {name}, leave it out"
                )
        if self.nesterov and (not self.momentum or self.dampening):
            raise ConfigError(
                "ClientOptimizer(nesterov=True): needs a momentum above 0, and no dampening"
            )

    @classmethod
    def like(cls, optimizer: Any, *, decay: float = 0.0) -> ClientOptimizer:
        """The same rule as a torch.optim.SGD, Adam or RMSprop; see `flhe.rounds.torch_options`.

        Its learning rate and parameters are taken over, its state and its model's weights are not.

        Raises
        ------
        ConfigError
            Another optimizer, or an option of it that has no counterpart here, by name.
        """
        from flhe.rounds.torch_options import options_of

        return cls(**options_of(optimizer, DEFAULTS), decay=decay)

    @property
    def moments(self) -> tuple[str, ...]:
        """Names, PyTorch's, of the vectors kept from step to step, each as long as the model."""
        if self.name == "adam":
            return ("exp_avg", "exp_avg_sq")
        momentum = ("momentum_buffer",) if self.momentum else ()
        if self.name == "sgd":
            return momentum
        return ("square_avg", *momentum, *(("grad_avg",) if self.centered else ()))

    def init(self, length: int) -> dict[str, Vector]:
        """Moments before the first step: zeros, float32, shape (length,)."""
        return {name: np.zeros(length, np.float32) for name in self.moments}

    def step(
        self,
        mean: Vector,
        moments: Mapping[str, Vector],
        step: int,
        *,
        out: Vector | None = None,
    ) -> tuple[Vector, dict[str, Vector]]:
        """One step. Inputs are not modified, unless `out` is one of them.

        Parameters
        ----------
        mean : NDArray[float32]
            The round's mean gradient, finite, shape (length,).
        moments : mapping of str to NDArray[float32]
            What `init` or the last `step` gave, shape (length,) each.
        step : int
            The step, from 1. Rounds that came to nothing are not counted: there was no step.
        out : NDArray[float32], optional
            Where the change goes, shape (length,): `mean` itself, to save its size in memory, or
            memory of its own.

        Returns
        -------
        change : NDArray[float32]
            What to add to the model, shape (length,).
        moments : dict[str, NDArray[float32]]
            The next moments, in new arrays.

        Raises
        ------
        ProtocolError
            A mean or moments of another type or shape, moments of another optimizer, a step below 1.
        """
        blockwise.check(f"client optimizer {self.name}", self.moments, mean, moments, out)
        if step < 1:
            raise ProtocolError(f"client optimizer: step {step}, steps count from 1")
        values = {key: getattr(self, key) for key in DEFAULTS[self.name]}
        lr = values.pop("lr") / (1 + values.pop("decay") * (step - 1))

        def rule(gradient: Wide, old: Mapping[str, Wide]) -> tuple[Wide, Mapping[str, Wide]]:
            if self.name == "sgd":
                return torch_rules.sgd(gradient, old, lr, first=step == 1, **values)
            if self.name == "adam":
                return torch_rules.adam(gradient, old, lr, step=step, **values)
            return torch_rules.rmsprop(gradient, old, lr, **values)

        return blockwise.run(rule, mean, moments, out)

    def parameters(self) -> dict[str, Any]:
        """Name and parameters for canonical CBOR, floats as exact text."""
        values = {name: _written(getattr(self, name)) for name in DEFAULTS[self.name]}
        return {"name": self.name, **values}

    @classmethod
    def from_parameters(cls, obj: object) -> ClientOptimizer:
        """Inverse of `parameters`.

        Raises
        ------
        ProtocolError
            Anything that `parameters` does not write.
        """
        name = obj.get("name") if isinstance(obj, dict) else None
        if type(name) is not str or name not in DEFAULTS:
            raise ProtocolError("client optimizer: malformed, or unknown to this version of flhe")
        kinds = {key: type(_written(value)) for key, value in DEFAULTS[name].items()}
        fields = canonical.record(obj, "client optimizer", {"name": str, **kinds})
        try:
            values = {key: _read(fields[key]) for key in DEFAULTS[name]}
            optimizer = cls(name, **values)  # type: ignore[arg-type]  # it is one of DEFAULTS
        except (TypeError, ValueError, OverflowError) as error:  # ConfigError is a ValueError
            why = str(error) if isinstance(error, ConfigError) else "a parameter is not a number"
            raise ProtocolError(f"client optimizer: {why}") from None
        if optimizer.parameters() != fields:  # "1.0", "-0x0.0p+0" and the like
            raise ProtocolError("client optimizer: not written as flhe writes it")
        return optimizer


def _checked(name: str, value: object) -> Any:
    """`value` in the type, and within the range, of the parameter `name`."""
    if name in ("nesterov", "centered"):
        if type(value) is not bool:
            raise ConfigError(f"ClientOptimizer({name}={value!r}): must be True or False")
        return value
    if name == "betas":
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ConfigError(f"ClientOptimizer(betas={value!r}): must be two numbers")
        return tuple(_checked("each of betas", beta) for beta in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"ClientOptimizer({name}={value!r}): must be a number")
    if name in RANGES:
        least, most = RANGES[name]
        if not least <= value <= most:  # false for NaN
            raise ConfigError(f"ClientOptimizer({name}={value}): must lie from {least} to {most}")
    elif not 0 <= value < 1:
        raise ConfigError(f"ClientOptimizer({name}={value}): must be at least 0 and less than 1")
    return float(value) + 0.0  # one zero: -0.0 would be equal, and hash to something else


def _written(value: Any) -> Any:
    """A parameter's value as canonical CBOR takes it."""
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    return value if isinstance(value, bool) else float(value).hex()


def _read(written: Any) -> Any:
    """Inverse of `_written`; TypeError or ValueError for anything else."""
    if isinstance(written, list):
        return tuple(_read(part) for part in written)
    return written if isinstance(written, bool) else float.fromhex(written)

"""What optimizers of both kinds share: a table of rules, checked parameters, one step of any rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from flhe.errors import ConfigError, ProtocolError
from flhe.training import blockwise
from flhe.training.blockwise import Vector, Wide
from flhe.wire import canonical

Moments = Mapping[str, Wide]
Step = tuple[Wide, Moments]
"""The change of the model, and the next moments, of one block."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a table of rules.

    Parameters
    ----------
    block : callable or None
        (mean, moments, number of the step, the optimizer) -> `Step`; None adds the mean as it is.
    defaults : dict[str, Any]
        Every parameter that it has, with its default.
    moments : dict[str, str]
        Name of each vector that it keeps -> the parameter without which it does not; "" is always.
    """

    block: Callable[[Wide, Moments, int, Any], Step] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, str] = field(default_factory=dict)


class BaseOptimizer:
    """A rule by its name, with its parameters; the base of two frozen dataclasses.

    A parameter that the rule does not have stays None, and is refused when given: it would do nothing.
    """

    __slots__ = ()

    takes: ClassVar[Literal["update", "gradient"]]
    """What it makes the change of: the mean of what training changed, or of a batch's gradients."""
    rules: ClassVar[Mapping[str, Rule]]
    ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Least and most of a parameter; of all others, at least 0 and less than 1."""
    kind: ClassVar[str]
    counts: ClassVar[str]
    """What its steps are called."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in self.rules:
            raise ConfigError(
                f"{type(self).__name__}(name={self.name!r}): use one of {', '.join(self.rules)}"
            )
        defaults = self.rules[self.name].defaults
        for name in (f.name for f in fields(self)[1:]):  # type: ignore[arg-type]
            given = getattr(self, name)
            if name in defaults:
                value = defaults[name] if given is None else given
                object.__setattr__(self, name, self._checked(name, value, type(defaults[name])))
            elif given is not None:
                raise ConfigError(
                    f"{type(self).__name__}({name}={given!r}): {self.name} has no {name}, leave it out"
                )

    @classmethod
    def _checked(cls, name: str, value: object, kind: type) -> Any:
        """`value` in the type, and within the range, of the parameter `name`."""
        what = f"{cls.__name__}({name}={value!r})"
        if kind is bool:
            if type(value) is not bool:
                raise ConfigError(f"{what}: must be True or False")
            return value
        if kind is tuple:
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{what}: must be two numbers")
            return tuple(cls._checked(f"each of {name}", part, float) for part in value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{what}: must be a number")
        if name in cls.ranges:
            least, most = cls.ranges[name]
            if not least <= value <= most:  # false for NaN
                raise ConfigError(f"{what}: must lie from {least} to {most}")
        elif not 0 <= value < 1:
            raise ConfigError(f"{what}: must be at least 0 and less than 1")
        return float(value) + 0.0  # one zero: -0.0 would be equal, and hash to something else

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the vectors that it keeps from step to step, each as long as the model."""
        kept = self.rules[self.name].moments.items()
        return tuple(name for name, needs in kept if not needs or getattr(self, needs))

    def init(self, length: int) -> dict[str, Vector]:
        """Moments before the first step: zeros, float32, shape (length,)."""
        return {name: np.zeros(length, np.float32) for name in self.moments}

    def step(
        self,
        mean: Vector,
        moments: Mapping[str, Vector],
        number: int,
        *,
        out: Vector | None = None,
    ) -> tuple[Vector, dict[str, Vector]]:
        """One step. Inputs are not modified, unless `out` is one of them.

        Parameters
        ----------
        mean : NDArray[float32]
            The mean of a round, finite, shape (length,).
        moments : mapping of str to NDArray[float32]
            What `init` or the last `step` gave, shape (length,) each.
        number : int
            From 1: the round, for a server's optimizer; for a client's, the step. Rounds that came to
            nothing are no steps.
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
            A mean or moments of another type or shape, moments of another optimizer, a number below 1.
        """
        blockwise.check(f"{self.kind} {self.name}", self.moments, mean, moments, out)
        if number < 1:
            raise ProtocolError(f"{self.kind}: {self.counts} {number}, {self.counts}s count from 1")
        block = self.rules[self.name].block
        if block is None:
            return mean, {}
        return blockwise.run(lambda x, old: block(x, old, number, self), mean, moments, out)

    def parameters(self) -> dict[str, Any]:
        """Name and parameters for canonical CBOR, floats as exact text."""
        names = self.rules[self.name].defaults
        return {"name": self.name, **{name: _written(getattr(self, name)) for name in names}}

    @classmethod
    def from_parameters(cls, obj: object) -> Self:
        """Inverse of `parameters`.

        Raises
        ------
        ProtocolError
            Anything that `parameters` does not write.
        """
        name = obj.get("name") if isinstance(obj, dict) else None
        if type(name) is not str or name not in cls.rules:
            raise ProtocolError(f"{cls.kind}: malformed, or unknown to this version of flhe")
        defaults = cls.rules[name].defaults
        kinds = {key: type(_written(value)) for key, value in defaults.items()}
        found = canonical.record(obj, cls.kind, {"name": str, **kinds})
        try:
            values = {key: _read(found[key]) for key in defaults}
            optimizer = cls(name, **values)  # type: ignore[call-arg]  # a dataclass, by its table
        except (TypeError, ValueError, OverflowError) as error:  # ConfigError is a ValueError
            why = str(error) if isinstance(error, ConfigError) else "a parameter is not a number"
            raise ProtocolError(f"{cls.kind}: {why}") from None
        if optimizer.parameters() != found:  # "1.0", "-0x0.0p+0" and the like
            raise ProtocolError(f"{cls.kind}: not written as flhe writes it")
        return optimizer


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

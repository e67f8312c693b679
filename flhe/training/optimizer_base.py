"""What optimizers of both kinds share: a table of rules, checked parameters, one step of any rule.

Every client applies the rule to the same mean and must come to the same model, for members compare
keyed digests of theirs. So a rule uses +, -, *, /, sqrt and comparisons only, one element at a time,
which IEEE 754 rounds in one way alone; powers are repeated products. A block is computed in float64 and
rounded to float32 once. Numbers too small to be normal become zero, because some programs make the
processor flush them to zero and others do not. Blocks may fall anywhere: a rule treats elements alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.wire import canonical

Vector = NDArray[np.float32]
Wide = NDArray[np.float64]
"""What a block is computed in: a float32 moment is then rounded once a step."""

BLOCK = 1 << 14
"""Values at a time: temporaries then stay in the processor's cache, and few."""

TINY = float(np.finfo(np.float32).tiny)
HUGE = float(np.finfo(np.float32).max)
"""Smallest and largest normal float32."""

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

        All vectors are float32 (length,): the mean of a round, finite, moments as `init` or the last
        `step` gave them, and `out`, where the change goes: `mean` itself, to save its size in memory,
        or memory of its own. `number` counts from 1: the round, for a server's optimizer; for a
        client's, the step. Rounds that came to nothing are no steps.

        Gives what to add to the model, in which what is too large for float32 is its largest number
        (for fedavg it is `mean`, whatever `out` is), and the next moments, in new arrays.

        Raises ProtocolError: a mean or moments of another type or shape, moments of another optimizer,
        a number below 1.
        """
        self._check(mean, moments, out)
        if number < 1:
            raise ProtocolError(f"{self.kind}: {self.counts} {number}, {self.counts}s count from 1")
        block = self.rules[self.name].block
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
        what, names = f"{self.kind} {self.name}", self.moments
        if set(moments) != set(names):
            raise ProtocolError(
                f"{what} keeps {', '.join(names) or 'no moments'}; the model comes with "
                f"{', '.join(sorted(moments)) or 'none'}: it was trained with another"
            )
        vectors = [mean, *moments.values(), *([] if out is None else [out])]
        if any(v.dtype != np.float32 or v.shape != (mean.size,) for v in vectors):
            raise ProtocolError(f"{what}: mean and moments must be float32 vectors of one length")

    def parameters(self) -> dict[str, Any]:
        """Name and parameters for canonical CBOR, floats as exact text."""
        names = self.rules[self.name].defaults
        return {"name": self.name, **{name: _written(getattr(self, name)) for name in names}}

    @classmethod
    def from_parameters(cls, obj: object) -> Self:
        """Inverse of `parameters`.

        Raises ProtocolError: anything that `parameters` does not write.
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


def power(base: float, exponent: int) -> float:
    """`base` to a power of 0 or more by squaring: libraries' pow() differ in the last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _normal(block: Wide) -> Wide:
    """`block` with everything below float32's normal range set to zero, in place."""
    block[np.abs(block) < TINY] = 0
    return block


def _store(block: Wide, out: Vector) -> None:
    """Round a block to float32; what is too large for it becomes its largest number."""
    out[...] = np.clip(_normal(block), -HUGE, HUGE)

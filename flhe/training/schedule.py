"""Schedule: an app's settings in each round, fixed for all rounds before the first.

A setting is a constant, a list with one value for each round, or a rule:

    {"lr": Cosine(0.1, 0.001, rounds=50), "local-epochs": 2}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from flhe.errors import ConfigError
from flhe.wire.canonical import dumps
from flhe.wire.fields import As, within
from flhe.wire.record import Form, Record

MAX_SHOWN = 80
"""Maximum characters of a setting's value in a contract's lines."""

Scalar = bool | int | float | str | bytes
Value = Scalar | list[bool] | list[int] | list[float] | list[str] | list[bytes]
_Rounds = Annotated[int, within(1, (1 << 32) - 1)]


@dataclass(frozen=True, slots=True)
class Step(Record):
    """`start`, multiplied by `factor` after each `every` rounds."""

    FORM = Form("step", row=True, error=ConfigError)

    start: float
    factor: float
    every: _Rounds

    def at(self, round_: int) -> float:
        """Return the value in a round of training, counted from 1."""
        return float(self.start * self.factor ** ((round_ - 1) // self.every))


@dataclass(frozen=True, slots=True)
class Cosine(Record):
    """From `start` to `end` along half a cosine in `rounds` rounds; `end` from then on."""

    FORM = Form("cosine", row=True, error=ConfigError)

    start: float
    end: float
    rounds: _Rounds

    def at(self, round_: int) -> float:
        """Return the value in a round of training, counted from 1."""
        done = min((round_ - 1) / max(self.rounds - 1, 1), 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


Schedule = Step | Cosine
"""A rule that gives a setting's value in each round."""
_RULES: dict[str, type[Schedule]] = {"step": Step, "cosine": Cosine}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all rounds: by name, a constant, a rule, or a tuple of one value for each round.

    None in a tuple omits the setting in that round; later rounds repeat the tuple's last value.
    Raises ConfigError: a value that is not a number, text or bytes, nor a list of those.
    """

    by_name: Mapping[str, Value | Schedule | tuple[Value | None, ...]]

    def __post_init__(self) -> None:
        in_order = dict(sorted(self.by_name.items()))
        object.__setattr__(self, "by_name", in_order)
        for name, given in in_order.items():
            if type(name) is not str or not 0 < len(name) <= 256 or given == ():
                raise ConfigError("a setting of the app needs a name, and a value for each round")
            _one(given)  # refuses values that a contract cannot hold

    @classmethod
    def of_rounds(cls, told: Sequence[Mapping[str, Value]]) -> Settings:
        """Return settings from a list with those of each round."""
        by_name: dict[str, Any] = {}
        for name in sorted({name for one in told for name in one}):
            values = tuple(one.get(name) for one in told)
            known = [dumps(None if value is None else _written(value)) for value in values]
            by_name[name] = values[0] if known.count(known[0]) == len(known) else values
        return cls(by_name)

    def at(self, round_: int) -> dict[str, Value]:
        """Return the app's settings in a round, by name, in order."""
        told = {}
        for name, given in self.by_name.items():
            value: Any = given
            if isinstance(given, Schedule):
                value = given.at(round_)
            elif isinstance(given, tuple):
                value = given[min(max(round_, 1), len(given)) - 1]
            if value is not None:
                told[name] = value
        return told

    def to_fields(self) -> list[list[Any]]:
        """Return the encoded settings: name, kind, and values with their types."""
        return [[name, *_one(given)] for name, given in self.by_name.items()]

    def lines(self) -> list[str]:
        """Return one line for each setting."""
        return [f"{name} = {_shown(given)}" for name, given in self.by_name.items()]


def _shown(given: object) -> str:
    if isinstance(given, tuple):
        some = ", ".join(map(_shown, given[:3]))
        return f"{some}, ... ({len(given)} rounds)" if len(given) > 3 else f"{some}, by round"
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _written(value: object) -> Any:
    """Return a value for CBOR, with its type: 1, 1.0, True and "1" are four values."""
    if isinstance(value, float) and not math.isnan(value):
        return {"float": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    raise ConfigError(
        "a setting of the app must be a number, text or bytes: a contract holds nothing else"
    )


def _read(stored: Any) -> Any:
    if isinstance(stored, list):
        return [_read(item) for item in stored]
    return float.fromhex(stored["float"]) if isinstance(stored, dict) else stored


def _one(given: Any) -> list[Any]:
    if isinstance(given, Schedule):
        return [given.FORM.what, given.to_fields()]
    if isinstance(given, tuple):
        return ["rounds", [None if value is None else _written(value) for value in given]]
    return ["always", _written(given)]


def _from_fields(stored: Any) -> Settings:
    by_name: dict[str, Any] = {}
    try:
        for name, kind, given in stored:
            if kind == "always":
                by_name[name] = _read(given)
            elif kind == "rounds":
                by_name[name] = tuple(map(_read, given))
            else:
                by_name[name] = _RULES[kind].from_fields(given)
    except (KeyError, TypeError) as error:
        raise ValueError from error
    return Settings(by_name)


SettingsField = Annotated[
    Settings, As(Settings.to_fields, _from_fields, "settings by round", refuses=True)
]
"""Field type of a record for settings."""

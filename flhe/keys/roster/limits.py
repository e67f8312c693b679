"""Limits: what all sites of a roster have agreed on, beside who they are.

A node's own policy may be stricter than its roster and never laxer. A limit that is absent leaves the
matter to each node's own config; one that is there makes an exception for nobody:

    key-bits, min-select, min-noise, min-members   the larger of both holds
    max-releases                                   the smaller of both holds; 0 is any number
    fresh-keys                                     true on either side holds
    server-reads, unpermuted, counts               false on either side holds

So a roster that says server-reads=true lets the server read nowhere by that alone: a node that does not
allow it in its own config still refuses.

Source: docs/protocol.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from flhe.errors import ConfigError, ProtocolError

Value = bool | int | float

_INTEGERS: dict[str, tuple[int, ...] | range] = {
    "key_bits": (2048, 3072, 4096),
    "max_releases": range(1 << 32),
    "min_members": range(2, 1025),
}
_NUMBERS = {"min_select": 1.0, "min_noise": math.inf}  # name -> largest value
_PERMISSIONS = ("server_reads", "unpermuted", "counts")
_DUTIES = ("fresh_keys",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a roster says of the parameters of runs; None where it says nothing.

    Parameters
    ----------
    key_bits : int, optional
        Shortest Paillier modulus, bits.
    fresh_keys : bool, optional
        Whether ESAFL's keys must be fresh in each round.
    min_select : float, optional
        Smallest share of an update that must be encrypted, 0 to 1.
    min_noise : float, optional
        Least scale of the noise on what is in clear, in units of the update.
    server_reads : bool, optional
        Whether the server may read the sum of a round.
    unpermuted : bool, optional
        Whether the server may see which values of a sparse update were chosen.
    counts : bool, optional
        Whether example counts may leave a node.
    max_releases : int, optional
        Most updates with noise that may leave a node; 0 for any number.
    min_members : int, optional
        Fewest members of an epoch.

    Raises
    ------
    ConfigError
        A value of another type, or out of bounds.
    """

    key_bits: int | None = None
    fresh_keys: bool | None = None
    min_select: float | None = None
    min_noise: float | None = None
    server_reads: bool | None = None
    unpermuted: bool | None = None
    counts: bool | None = None
    max_releases: int | None = None
    min_members: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value not in allowed):
                raise ConfigError(f"{_written(name)}: {_bounds(allowed)}")
        for name, most in _NUMBERS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if type(value) not in (int, float) or not 0 <= value <= most or math.isinf(value):
                raise ConfigError(f"{_written(name)}: a number of 0 to {most:g}")
            object.__setattr__(self, name, float(value) + 0.0)  # 1 and 1.0 are one value, -0.0 is 0
        for name in (*_PERMISSIONS, *_DUTIES):
            if type(getattr(self, name)) not in (bool, type(None)):
                raise ConfigError(f"{_written(name)}: true or false")

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Limits:
        """Read what a person wrote, `NAME=VALUE` each, names as in a node's config without `flhe-`.

        Raises
        ------
        ConfigError
            A name that is unknown or comes twice, or a value that is none.
        """
        said: dict[str, Value] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            field = name.replace("-", "_")
            if field not in _NAMES or name != _written(field):
                raise ConfigError(
                    f"--allow {setting}: no parameter; there are {', '.join(map(_written, _NAMES))}"
                )
            if field in said:
                raise ConfigError(f"--allow {setting}: {name} is said twice")
            try:
                said[field] = _READ[field](text)
            except (KeyError, ValueError):
                raise ConfigError(f"--allow {setting}: {text or 'nothing'} is no value") from None
        return cls(**said)  # type: ignore[arg-type]

    def said(self) -> dict[str, Value]:
        """What there is, by name as it is written in a node's config without `flhe-`."""
        values = {name: getattr(self, name) for name in _NAMES}
        return {_written(name): value for name, value in values.items() if value is not None}

    def lines(self) -> list[str]:
        """What there is, `NAME=VALUE` each, as `parse` reads it."""
        return [f"{name}={_text(value)}" for name, value in self.said().items()]

    def to_fields(self) -> dict[str, bool | int | str]:
        """For canonical CBOR, which has no floats: those are text, the shortest that reads as them."""
        return {n: repr(v) if type(v) is float else v for n, v in self.said().items()}  # type: ignore[misc]

    @classmethod
    def from_fields(cls, stored: Mapping[str, object]) -> Limits:
        """Inverse of `to_fields`.

        Raises
        ------
        ProtocolError
            A parameter that this version does not know: it may be a limit that must be kept.
        ConfigError
            A value that is none.
        """
        said: dict[str, object] = {}
        for name, value in stored.items():
            field = name.replace("-", "_")
            if field not in _NAMES or name != _written(field):
                raise ProtocolError(
                    "roster: it has a parameter that this version of flhe does not know: upgrade flhe"
                )
            if field in _NUMBERS:
                if type(value) is not str:
                    raise ConfigError(f"{name}: a number, written as text")
                try:
                    number = float(value)
                except ValueError:
                    number = math.nan
                if repr(number) != value:
                    raise ConfigError(f"{name}: a number in its shortest form")
                said[field] = number
            else:
                said[field] = value
        return cls(**said)  # type: ignore[arg-type]

    def tighten(self, own: Mapping[str, Value]) -> dict[str, Value]:
        """The stricter of these limits and a node's own, by name of field.

        `own` has a value for each field.
        """
        return {name: self._stricter(name, own[name]) for name in _NAMES}

    def _stricter(self, name: str, own: Value) -> Value:
        agreed: Value | None = getattr(self, name)
        if agreed is None:
            return own
        if name in _PERMISSIONS:
            return bool(own and agreed)
        if name in _DUTIES:
            return bool(own or agreed)
        if name == "max_releases":
            return min(own, agreed) if own and agreed else own or agreed
        return max(own, agreed)


NONE = Limits()
"""Every matter is left to each node."""

_NAMES = tuple(field.name for field in fields(Limits))
_FLAGS = {"true": True, "false": False}
_READ: dict[str, Callable[[str], Value]] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(_NUMBERS, float),
    **dict.fromkeys((*_PERMISSIONS, *_DUTIES), _FLAGS.__getitem__),
}


def _written(name: str) -> str:
    return name.replace("_", "-")


def _text(value: Value) -> str:
    return str(value).lower() if type(value) is bool else f"{value}"


def _bounds(allowed: tuple[int, ...] | range) -> str:
    if isinstance(allowed, tuple):
        return f"one of {', '.join(map(str, allowed))}"
    return f"a whole number of {allowed[0]} to {allowed[-1]}"

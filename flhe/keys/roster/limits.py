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
from typing import Annotated, Literal

from flhe.errors import ConfigError
from flhe.wire.fields import U32, between, within
from flhe.wire.record import Form, Record

Value = bool | int | float

_PERMISSIONS = ("server_reads", "unpermuted", "counts")
_DUTIES = ("fresh_keys",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Record):
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

    FORM = Form("limits", error=ConfigError, lean=True, advice="upgrade flhe")

    key_bits: Literal[2048, 3072, 4096] | None = None
    fresh_keys: bool | None = None
    min_select: Annotated[float, between(0, 1)] | None = None
    min_noise: Annotated[float, between(0, math.inf)] | None = None
    server_reads: bool | None = None
    unpermuted: bool | None = None
    counts: bool | None = None
    max_releases: U32 | None = None
    min_members: Annotated[int, within(2, 1024)] | None = None

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
                cls(**{field: said[field]})  # type: ignore[arg-type]
            except ConfigError as error:
                _, _, needs = str(error).partition(" must be ")
                raise ConfigError(
                    f"--allow {setting}: must be {needs.removesuffix(', or none')}"
                ) from None
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
    **dict.fromkeys(("key_bits", "max_releases", "min_members"), int),
    **dict.fromkeys(("min_select", "min_noise"), float),
    **dict.fromkeys((*_PERMISSIONS, *_DUTIES), _FLAGS.__getitem__),
}


def _written(name: str) -> str:
    return name.replace("_", "-")


def _text(value: Value) -> str:
    return str(value).lower() if type(value) is bool else f"{value}"

"""One setting of the app, declared once: for the run config, the command line and the checks."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from flhe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Option:
    """Description of a setting besides its type and default."""

    help: str  # Its effect, for the command line
    flag: str = ""  # Its name on the command line, if that is not its key
    group: str = ""  # Its group in the command line's help; "" if only `--settings` names it
    internal: bool = False
    """Whether only the run config has it, for other ways to start the app."""
    known: tuple[str, ...] = ()  # Permitted values of a text; empty permits all
    least: float = 0  # Smallest number
    most: float = math.inf  # Largest number
    positive: bool = False  # Whether a number must be more than 0
    only: tuple[tuple[str, Any], ...] = ()
    """Other settings and the value of each without which this one has no effect; None: not 0."""
    extra: Mapping[str, Any] = field(default_factory=dict)  # More arguments of `typer.Option`


GROUPS = ("Federation", "Training", "Updates", "Files", "Options")
"""Groups of the command line's help, in their order."""


def option(default: Any, help: str, **about: Any) -> Any:  # noqa: A002
    """Declare a setting as the field of a dataclass; `about` are parameters of `Option`."""
    return field(default=default, metadata={"option": Option(help, **about)})


def about(setting: Field[Any]) -> Option:
    """Return what was declared of a field."""
    found: Option = setting.metadata["option"]
    return found


def flag_of(setting: Field[Any]) -> str | None:
    """Return a setting's option on the command line; None if only the run config has it."""
    key, said = key_of(setting.name), about(setting)
    both = f"--{key}/--no-{key}" if setting.default is True else f"--{key}"
    return None if said.internal else said.flag or both


def key_of(name: str) -> str:
    """Return the run config's key of a field."""
    return name.replace("_", "-")


def check(settings: Any) -> None:
    """Refuse values out of range, one by one, and those without effect beside the others.

    Raises ConfigError: the text names the key, its value, and permitted ones.
    """
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        _check_value(key_of(setting.name), value, about(setting))
    for setting in fields(settings):
        given = getattr(settings, setting.name)
        for other, value in about(setting).only if given != setting.default else ():
            beside = getattr(settings, other)
            if beside == value or (value is None and beside):
                continue
            why = f"with {key_of(other)}={beside!r}: leave it out, or use {key_of(other)}={value!r}"
            if value is None:
                why = f"without {key_of(other)}: leave it out, or give that too"
            elif value is True:
                why = f"where nothing is {other}: leave it out"
            raise ConfigError(f"{key_of(setting.name)}={given!r} has no effect {why}")


def _check_value(key: str, value: Any, said: Option) -> None:
    if said.known and value not in said.known:
        raise ConfigError(f"{key}={value!r} is unknown; use one of {', '.join(said.known)}")
    if isinstance(value, str | bool):
        return
    if not said.least <= value <= min(said.most, sys.float_info.max) or (
        said.positive and not value
    ):
        bounds = "more than 0" if said.positive else f"{said.least:g} or more"
        most = f" and at most {said.most:g}" if said.most < math.inf else ""
        finite = "finite and " if isinstance(value, float) else ""
        raise ConfigError(f"{key}={value}: must be {finite}{bounds}{most}")

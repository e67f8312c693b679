"""Numbers and TOML files that users give, checked once; errors say where, and what is wrong."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from flhe.errors import ConfigError

Built = TypeVar("Built")

_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "tables, each under [[its name]]",
    dict: "a table",
}


def check_amounts(what: str, **amounts: float) -> None:
    """Refuse what is not a finite number of 0 or more: ConfigError."""
    for name, amount in amounts.items():
        if not (math.isfinite(amount) and amount >= 0):
            raise ConfigError(f"{what}: {name}={amount} must be finite and 0 or more")


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; ConfigError tells the line of what is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def take(
    table: object,
    where: str,
    needed: Mapping[str, type],
    optional: Mapping[str, type] = MappingProxyType({}),
) -> dict[str, Any]:
    """Fields of one table: all that are needed, none unknown, each of its type.

    A float may be written as a whole number. ConfigError says `where` and which field.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    fields = {**needed, **optional}
    if missing := [name for name in needed if name not in table]:
        raise ConfigError(f"{where}: {missing[0]} is missing")
    if unknown := [name for name in table if name not in fields]:
        raise ConfigError(f"{where}: unknown field {unknown[0]}; it has {', '.join(fields)}")
    for name, value in table.items():
        kind = (int, float) if fields[name] is float else fields[name]
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{where}: {name}={value!r} must be {_NAMES[fields[name]]}")
    return dict(table)


def made(where: str, build: Callable[..., Built], *values: object, **fields: object) -> Built:
    """What `build` makes of them; its ConfigError then says where they stand."""
    try:
        return build(*values, **fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None

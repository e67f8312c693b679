"""Read a node config as Flower does, and refuse one that Flower would read in part."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError

_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")
"""Flower's pattern for the text; it silently drops anything between the matches."""


def parse(text: str) -> dict[str, object]:
    """Read what `flower-supernode --node-config` takes: `key=value` pairs, or the path of a TOML file.

    Raises ConfigError: it cannot be read (values are bool, int, float, or text in quotes), or
    Flower drops a part of it: with a space beside the `=`, for instance, a limit would not be
    enforced.
    """
    read = as_flower_reads(text)
    if text.endswith(".toml"):
        return read
    dropped = _PAIR.sub(" ", text).split()
    # Flower treats text after a # outside quotes as a comment.
    dropped += [f"{k}={v}" for k, v in _PAIR.findall(text) if "#" in k + v * (v[0] not in "'\"")]
    if dropped:
        raise ConfigError(
            f"--node-config: flower-supernode would silently drop {dropped[0][:40]!r}; write "
            "key=value, with no space beside the =, and spaces between pairs"
        )
    return read


def as_flower_reads(text: str) -> dict[str, object]:
    """Read it as Flower does, dropped parts included; ConfigError if Flower refuses it too."""
    try:
        if text.endswith(".toml"):
            return _flat(tomllib.loads(Path(text).expanduser().read_text(encoding="utf-8")))
        return _flat(tomllib.loads("\n".join(f"{k} = {v}" for k, v in _PAIR.findall(text))))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"--node-config cannot be read: {type(error).__name__}; write key=value pairs with spaces "
            "between them, and text in quotes, as flower-supernode takes them, or name a .toml file"
        ) from None


def _flat(table: Mapping[str, Any]) -> dict[str, object]:
    """Join the keys of nested tables with dots; ValueError at a value that no node config has."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in _flat(value).items()}
        elif isinstance(value, bool | int | float | str):
            flat[key] = value
        else:
            raise ValueError(key)
    return flat

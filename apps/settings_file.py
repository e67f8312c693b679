"""Settings of `flhe run` in a TOML file: what the command line says, written down.

task = "fcn-digits"
top-k = 0.1

[scheme]
name = "sash"
unmask = "clients"
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe_app.option import about, key_of, said
from flhe_app.settings import Settings


def from_file(path: Path | None) -> dict[str, Any]:
    """Settings by the names of their fields; none of no file.

    Raises ConfigError: no such file, no TOML, or a setting that there is not.
    """
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    names = {
        key_of(field.name): field.name for field in fields(Settings) if not about(field).internal
    }
    if unknown := [key for key in found if key not in names]:
        raise ConfigError(
            f"--config {path}: {unknown[0]} is no setting; `flhe run --settings` lists them"
        )
    if isinstance(scheme := found.get("scheme"), dict):
        found["scheme"] = _text(scheme, path)
    read = Settings.from_config(found)
    return {names[key]: getattr(read, names[key]) for key in found}


def _text(scheme: dict[str, Any], path: Path) -> str:
    """A scheme's table as one text."""
    if type(scheme.get("name")) is not str:
        raise ConfigError(f"--config {path}: [scheme] needs a name")
    return " ".join([scheme["name"], *(said(k, v) for k, v in scheme.items() if k != "name")])

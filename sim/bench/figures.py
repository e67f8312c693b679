"""Where a picture goes, and the JSON file beside it that holds what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe.packages import install_hint


def check(path: Path) -> None:
    """Refuse a path where no picture can go, before there is one: ConfigError."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"{path}: a figure is a .svg; its data goes into a .json beside it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"figures need matplotlib: {install_hint('apps', 'matplotlib')}"
        ) from None


def save_data(path: Path, name: str, version: int, data: Mapping[str, Any]) -> Path:
    """Write what a figure shows into the JSON file beside it; returns that file's path.

    `path` is the figure's, `name` and `version` are the data's format; `data` holds JSON values.
    """
    beside = path.with_suffix(".json")
    document = {"format": name, "version": version, **data}
    try:
        beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{beside}: cannot be written ({error.strerror})") from None
    return beside

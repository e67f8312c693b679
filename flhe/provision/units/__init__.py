"""Templates of the systemd units; commands fill in where this installation is."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path


def read(name: str) -> str:
    """Return a unit, with the commands of this installation."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return text.replace("@BIN@", f"{Path(sys.executable).parent}")

"""Public files that sites and coordinators exchange: cards, federation files, keys of reviewers.

Each is written atomically, and replaces another one only on request.
"""

from __future__ import annotations

import os
from pathlib import Path

from flhe.errors import ConfigError, StoreError
from flhe.wire import files

MODE = 0o644


def read(path: Path, limit: int, what: str) -> bytes:
    """Return the first `limit` + 1 bytes of a file; ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read ({error.strerror})") from None


def check_new(path: Path) -> Path:
    """Return `path`; ConfigError if it exists."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already, and is not overwritten: name another file")
    return path


def replace(path: Path, data: bytes) -> None:
    """Write or replace a file; ConfigError if it cannot be written."""
    try:
        files.replace(path, [data])
        path.chmod(MODE)
    except (StoreError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error.__context__)
        raise ConfigError(f"{path}: cannot be written ({why})") from None

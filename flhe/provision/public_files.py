"""Files that hold no secret and go from site to site: requests to be listed, and rosters.

Each is written whole or not at all, and none in the place of another unless that is what was asked.
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


def write_new(path: Path, data: bytes) -> None:
    """Write a file that was not there. Raises ConfigError if it was, or cannot be written."""
    check_new(path)
    replace(path, data)


def check_new(path: Path) -> Path:
    """Return `path`; raise ConfigError if there is something at it."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} is there already, and is not overwritten: name another file")
    return path


def replace(path: Path, data: bytes) -> None:
    """Write a file, in place of what had that name. Raises ConfigError if it cannot be written."""
    try:
        files.replace(path, [data])
        path.chmod(MODE)
    except (StoreError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error.__context__)
        raise ConfigError(f"{path}: cannot be written ({why})") from None

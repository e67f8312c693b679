"""Measurements on disk: a file a step, written whole or not at all, so that a stopped run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe.sim.bench import machine

FORMAT, VERSION = "flhe measurement", 1
SAME = ("processor", "processors", "flhe")
"""What of `machine()` must be the same for a measurement to be taken over."""


class Store:
    """Results of steps, by key.

    Parameters
    ----------
    folder : Path
        Where the files are; made if it is not there.
    fresh : bool
        Forget what is there.

    Raises
    ------
    ConfigError
        The folder cannot be made or written.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._here = machine()
        self.foreign: list[str] = []
        """Keys of measurements of another machine or release, which are not taken over."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.part"):
                left.unlink()
            if fresh:
                for path in folder.glob("*.json"):
                    path.unlink()
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be used ({error.strerror})") from None

    def get(self, key: str) -> Any:
        """The result that is kept under `key`, of this machine and release; None where there is none.

        Raises
        ------
        ConfigError
            The file is not one of ours.
        """
        path = self._path(key)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if (found["format"], found["version"], found["key"]) != (FORMAT, VERSION, key):
                raise ValueError
            there, data = found["machine"], found["data"]
            same = all(there[name] == self._here[name] for name in SAME)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path}: is no measurement of version {VERSION}; remove it, or use --fresh"
            ) from None
        if not same:
            self.foreign.append(key)
            return None
        return data

    def put(self, key: str, data: Any) -> Any:
        """Keep a result; returns it as it will be read: JSON values."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "key": key,
            "machine": self._here,
            "data": data,
        }
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        path, part = self._path(key), self._path(key).with_suffix(".part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
        return json.loads(text)["data"]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

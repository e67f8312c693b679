"""Measurements on disk: a file a step, written whole or not at all, so that a stopped run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe_lab.bench.host import machine

FORMAT, VERSION = "flhe measurement", 1
LIBRARIES = ("flwr", "gmpy2", "phe", "tenseal", "torch")
"""Whose versions count, beside those that `machine()` tells; "" of what is not installed."""

SAME = ("processor", "processors", "flhe", "numba", "numpy", *LIBRARIES)
"""What must be the same for a measurement to be taken over."""


def here() -> dict[str, Any]:
    """What it runs on, libraries and all."""
    found = machine()
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


class Store:
    """Results of steps, by key.

    Raises ConfigError: the folder cannot be made or written.

    `folder` is made if it is not there. With `anywhere`, measurements of any machine are taken over.
    """

    def __init__(self, folder: Path, *, anywhere: bool = False) -> None:
        self._folder = folder
        self._here = here()
        self._anywhere = anywhere
        self.machines: dict[str, Any] = {}
        """Key -> what the result that is kept under it was measured on."""
        self.foreign: list[str] = []
        """Keys of measurements of another machine or release, which are not taken over."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.part"):
                left.unlink()
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be used ({error.strerror})") from None

    def get(self, key: str) -> Any:
        """The result that is kept under `key`, of this machine and release; None where there is none.

        Raises ConfigError: the file is not one of ours.
        """
        path = self._path(key)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if (found["format"], found["version"], found["key"]) != (FORMAT, VERSION, key):
                raise ValueError
            there, data = found["machine"], found["data"]
            same = all(there.get(name) == self._here[name] for name in SAME)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path}: is no measurement of version {VERSION}; remove that file"
            ) from None
        if not same and not self._anywhere:
            self.foreign.append(key)
            return None
        self.machines[key] = there
        return data

    def having(self, keys: Iterable[str]) -> dict[str, Any]:
        """What `get` gives for those keys that are there."""
        found = {key: self.get(key) for key in keys}
        return {key: data for key, data in found.items() if data is not None}

    def put(self, key: str, data: Any) -> Any:
        """Keep a result; returns it as it will be read: JSON values."""
        document = {"format": FORMAT, "version": VERSION, "key": key, "machine": self._here}
        text = json.dumps({**document, "data": data}, indent=1, allow_nan=False) + "\n"
        path, part = self._path(key), self._path(key).with_suffix(".part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
        self.machines[key] = self._here
        return json.loads(text)["data"]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

"""State directory of one node, for its owner only: identity, keys and all other kept state.

Directories are 0700, files 0600, written atomically (`flhe/wire/files.py`). Only this module writes
`identity.key`, an Ed25519 seed. Each federation's journal records how far keys were used
(`journal.py`); the store knows the place of its witness.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flhe.errors import ConfigError, StoreError
from flhe.keys.identity import Identity
from flhe.node import ledger
from flhe.node.witness import IN_PROCESS, Witness
from flhe.wire import files
from flhe.wire.files import Buffer
from flhe.wire.secret import Random

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATIENCE = 5.0  # seconds that a line of a log waits for the lock


class Store:
    """The state directory at `path`; created if missing, with its parents.

    `witness` is the one of its journals; without it, their keys work in this process only. Raises
    StoreError if the directory is a link, belongs to another user or is open to others.
    """

    def __init__(self, path: str | Path, witness: Witness = IN_PROCESS) -> None:
        self.root = Path(path)
        self.witness = witness
        with files.os_errors("make"):
            self.root.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(self.root)

    def __repr__(self) -> str:
        return "Store(<state directory>)"

    @contextmanager
    def lock(self, timeout: float = files.PATIENCE_S, *, name: str = "lock") -> Iterator[None]:
        """Hold the directory's lock, after at most `timeout` seconds (StoreError); not reentrant.

        Locks of different names are independent: each run has one, so runs can share a node.
        """
        with files.os_errors("lock"):
            handle = os.open(self.root / name, os.O_RDWR | os.O_CREAT | files.SAFE, 0o600)
        holder = os.getpid()
        try:
            files.hold(handle, timeout=timeout)
            files.sweep(self.root)
            yield
        finally:
            # Unlock explicitly: a forked child inherits the handle. Only the process that locked
            # does so, because the child may run this too.
            if os.getpid() == holder:
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def exists(self, name: str) -> bool:
        """Return whether the file `name` exists."""
        return os.path.isfile(self._at(name))  # noqa: PTH113 -- as in `_at`

    def names(self, pattern: str) -> list[str]:
        """Return the names of the files that match a pattern, ascending."""
        with files.os_errors("read"):
            found = [p for p in self.root.glob(pattern) if _PART.fullmatch(p.name) and p.is_file()]
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def changed(self, name: str) -> int:
        """Return the modification time of `name` in nanoseconds; without the file, the present."""
        with files.os_errors("read"):
            try:
                return os.stat(self._at(name)).st_mtime_ns  # noqa: PTH116
            except FileNotFoundError:  # another process replaces or removes it
                return time.time_ns()

    def read(self, name: str) -> bytes:
        """Return the content of `name`; StoreError if it is missing or open to others."""
        return files.read(self._at(name))

    def mapped(self, name: str) -> memoryview:
        """Return the content of a large file `name` as `files.mapped` does; errors as for `read`."""
        return files.mapped(self._at(name))

    def write(self, name: str, data: Buffer | Iterable[Buffer]) -> None:
        """Write the file `name` atomically, from one buffer or many; an older one is replaced.

        `name` is a relative path of up to four parts, each of letters, digits and `.`, `_`, `-`.
        Raises ConfigError for another name.
        """
        path = self._own(name)
        for parent in reversed(list(path.relative_to(self.root).parents)[:-1]):
            files.make_private(self.root / parent)
        files.replace(path, [data] if isinstance(data, Buffer) else data)

    def move(self, name: str, to: str) -> None:
        """Rename the file `name` to `to`, which is replaced."""
        source, target = self._own(name), self._own(to)
        files.move(source, target)

    def append(self, name: str, lines: bytes, limit: int) -> None:
        """Add lines to the log `name`, all or none; a full one becomes `<name>.1`."""
        path = self._own(name)
        with self.lock(_PATIENCE, name="lock-log"):  # runs share it, and only one may rotate
            files.append(path, lines, limit)

    def replace_erasing(self, name: str, data: Buffer) -> None:
        """Replace a file's secrets by others; the old ones are overwritten as far as that helps."""
        files.replace_erasing(self._own(name), [data])

    def erase(self, name: str) -> None:
        """Overwrite `name` with zeros as far as that helps, and remove it; it may be missing."""
        files.erase(self._own(name))

    def drop(self, folder: str) -> None:
        """Erase the files of a directory, and remove it."""
        place = self._own(folder)
        with files.os_errors("remove"):
            for path in place.glob("*"):
                files.erase(path)
            place.rmdir()

    def identity(self, random: Random = secrets.token_bytes) -> Identity:
        """Load this node's identity, created on first use. It takes the lock: do not hold one."""
        if not self.exists("identity.key"):
            with self.lock():
                if not self.exists("identity.key"):
                    seed = random(32)
                    ledger.begin(self, Identity(seed).public)
                    files.replace(Path(self._at("identity.key")), [seed])
        seed = self.read("identity.key")
        if len(seed) != 32:
            raise StoreError("identity.key is damaged: restore it, or enrol a new identity")
        return Identity(seed)

    def _own(self, name: str) -> Path:
        """Return the path of a file to be written, moved or erased."""
        if name.startswith(("identity.key", "lock")):
            raise ConfigError(f"Store: {name} is the store's own, choose another name")
        return Path(self._at(name))

    def _at(self, name: str) -> str:
        parts = name.split("/")
        if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
            raise ConfigError("Store: a name is up to four parts of letters, digits, '.', '_', '-'")
        path = str(self.root)
        for depth, part in enumerate(parts):
            if depth and os.path.islink(path):  # noqa: PTH114 -- a message asks for thirty files
                raise StoreError("a link inside the state directory: remove it")
            path = f"{path}/{part}"
        return path

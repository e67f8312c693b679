"""One node's state directory: identity, keys and whatever else is kept, for its owner only.

    identity.key   the Ed25519 seed
    epochs/<id>    an epoch's keys
    anything else  what the caller writes

Directories are 0700, files 0600, written whole or not at all (`flhe/wire/files.py`). How far keys were
used is in each federation's journal (`journal.py`); the store knows where that has its witness.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flhe.errors import ConfigError, NoKeyError, ReuseError, StoreError
from flhe.keys.identity import Identity
from flhe.node.witness import IN_PROCESS, Witness
from flhe.wire import files
from flhe.wire.files import Buffer
from flhe.wire.secret import Random

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_OWN = frozenset({"epochs", "identity.key"})  # only this module writes those
_POLL = 0.05  # seconds
MAX_LOG = 1 << 20
"""Bytes of errors.log; when it is full it starts anew."""
_PATIENCE = 5.0  # seconds that a line of a log waits for its turn


class Store:
    """The state directory at `path`; made if it is missing, with its parents.

    `witness` is the one of its journals; unless given, their keys are used in this process alone.
    Raises StoreError if it is a link, is not ours, or others may look into it.
    """

    def __init__(self, path: str | Path, witness: Witness = IN_PROCESS) -> None:
        self._root = Path(path)
        self.witness = witness
        with files.os_errors("make"):
            self._root.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(self._root)

    def __repr__(self) -> str:
        return "Store(<state directory>)"

    @contextmanager
    def lock(self, timeout: float = 30.0, *, name: str = "lock") -> Iterator[None]:
        """Hold the directory alone, waiting `timeout` seconds at most; not reentrant.

        Locks of different names do not exclude each other: one a run, so runs can share a node.

        Raises StoreError if another process (or thread) still holds it then.
        """
        with files.os_errors("lock"):
            handle = os.open(self._root / name, os.O_RDWR | os.O_CREAT | files.SAFE, 0o600)
        holder = os.getpid()
        try:
            until = time.monotonic() + timeout
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise StoreError(
                            f"another process has held the state directory for {timeout:g} s: give "
                            "each node a directory of its own, or end the other process"
                        ) from None
                    time.sleep(_POLL)
            files.sweep(self._root)
            yield
        finally:
            # Said aloud: a child that the app forked has a copy of the handle, which closing ours
            # would leave locked. And only by the one who locked: the child may come by here too.
            if os.getpid() == holder:
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def log_path(self, name: str) -> str:
        """Where a file is, for this node's own log and nowhere else."""
        return str(self._at(name))

    def exists(self, name: str) -> bool:
        """Whether the file `name` is there."""
        return self._at(name).is_file()

    def count(self, folder: str, name: str) -> int:
        """How many directories in `folder` hold a file `name`."""
        with files.os_errors("read"):
            return sum(1 for _ in self._at(folder).glob(f"*/{name}"))

    def oldest(self, folder: str, *, having: str, lacking: str) -> list[str]:
        """Directories in `folder` that hold one file and not another, the oldest first."""
        with files.os_errors("read"):
            found = [p for p in self._at(folder).glob("*") if (p / having).is_file()]
            found = [p for p in found if not (p / lacking).exists()]
            return [p.name for p in sorted(found, key=lambda p: (p / having).stat().st_mtime_ns)]

    def read(self, name: str) -> bytes:
        """Return the content of `name`. Raises StoreError if missing, or open to others."""
        return files.read(self._at(name))

    def write(self, name: str, data: Buffer) -> None:
        """Write the file `name`, whole or not at all; replaces an older one.

        `name` is a relative path of up to four parts, each of letters, digits and `.`, `_`, `-`.
        Raises ConfigError for another name, StoreError if it cannot be written.
        """
        self.write_chunks(name, [data])

    def write_chunks(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write `name` like `write`, from buffers that come one at a time.

        If `chunks` raises, the older file stays.
        """
        path = self._at(name, writing=True)
        self._make_parents(path)
        files.replace(path, chunks)

    def move(self, name: str, to: str) -> None:
        """Give the file `name` the name `to`, in place of what had it."""
        source, target = self._at(name, writing=True), self._at(to, writing=True)
        files.move(source, target)

    def append(self, name: str, data: bytes, limit: int) -> None:
        """Add to the end of `name`; a file that would exceed `limit` bytes starts anew."""
        files.append(self._at(name, writing=True), data, limit)

    def append_line(self, name: str, line: bytes, limit: int) -> None:
        """Add a line to the log `name`, whole or not at all; a full one becomes `<name>.1`."""
        path = self._at(name, writing=True)
        with self.lock(_PATIENCE, name="lock-log"):  # runs share it, and one at a time may rotate
            files.append_line(path, line, limit)

    def erase(self, name: str) -> None:
        """Overwrite `name` with zeros and remove it; a missing file is no error.

        The overwriting is best effort: flash memory and journals keep old blocks.
        """
        files.erase(self._at(name, writing=True))

    def drop(self, folder: str) -> None:
        """Erase the files of a directory, and remove it."""
        place = self._at(folder, writing=True)
        with files.os_errors("remove"):
            for path in place.glob("*"):
                files.erase(path)
            place.rmdir()

    def identity(self, random: Random = secrets.token_bytes) -> Identity:
        """Load this node's identity, made on first use. Takes the lock then: call it outside one.

        Raises StoreError if the file is damaged: a new identity must be enrolled in the roster.
        """
        if not self.exists("identity.key"):
            with self.lock():
                if not self.exists("identity.key"):
                    files.replace(self._at("identity.key"), [random(32)])
        seed = self.read("identity.key")
        if len(seed) != 32:
            raise StoreError("identity.key is damaged: restore it, or enrol a new identity")
        return Identity(seed)

    def put_epoch(self, epoch_bytes: bytes, epoch_id: bytes) -> None:
        """Store the keys of a new epoch, whose id is 16 bytes.

        Raises ReuseError: other keys of this epoch are here.
        """
        keys = self._keys(epoch_id)
        if keys.exists() and not hmac.compare_digest(files.read(keys), epoch_bytes):
            raise ReuseError("this epoch was stored before: agree on a new one")
        self._make_parents(keys)
        files.replace(keys, [epoch_bytes])

    def peek_epoch(self, epoch_id: bytes) -> bytes:
        """Return an epoch's keys; whether they may be used is in the federation's journal.

        Raises NoKeyError: they were erased, or are of another state directory.
        """
        keys = self._keys(epoch_id)
        if not keys.exists():
            raise NoKeyError(
                "the keys of this epoch are not in the state directory: agree on new ones"
            )
        return files.read(keys)

    def epochs(self) -> list[bytes]:
        """Ids of the epochs whose keys are here."""
        with files.os_errors("read"):
            folder = self._at("epochs")
            names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        return [bytes.fromhex(name) for name in names if re.fullmatch("[0-9a-f]{32}", name)]

    def replace_epoch(self, epoch_id: bytes, epoch_bytes: bytes) -> None:
        """Put other secrets in the place of an epoch's, which are overwritten, as far as that helps."""
        self.peek_epoch(epoch_id)
        files.replace_erasing(self._keys(epoch_id), [epoch_bytes])

    def erase_epoch(self, epoch_id: bytes) -> None:
        """Destroy the keys of an epoch."""
        files.erase(self._keys(epoch_id))

    def _at(self, name: str, *, writing: bool = False) -> Path:
        parts = name.split("/")
        if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
            raise ConfigError("Store: a name is up to four parts of letters, digits, '.', '_', '-'")
        if writing and (parts[0] in _OWN or parts[0].startswith("lock")):
            raise ConfigError(f"Store: {parts[0]} is the store's own, choose another name")
        path = self._root
        for part in parts:
            if path is not self._root and path.is_symlink():
                raise StoreError("a link inside the state directory: remove it")
            path /= part
        return path

    def _keys(self, epoch_id: bytes) -> Path:
        if type(epoch_id) is not bytes or len(epoch_id) != 16:
            raise ConfigError("Store: an epoch id is 16 bytes")
        return self._at(f"epochs/{epoch_id.hex()}")

    def _make_parents(self, path: Path) -> None:
        for parent in reversed(list(path.relative_to(self._root).parents)[:-1]):
            files.make_private(self._root / parent)


def log_failure(store: Store, stage: str, error: BaseException) -> None:
    """Append a failure to the node's own errors.log: the only place that gets the details."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{when} {stage[:16]!r}\n{''.join(traceback.format_exception(error))}\n"
    store.append("errors.log", text.encode(errors="backslashreplace"), limit=MAX_LOG)

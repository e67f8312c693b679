"""Replies on their way up: kept on disk until each is whole and judged, and over a restart.

    spool/<message id>/announced   the SuperNode's announcement, and when it came
    spool/<message id>/<object id> an object
    spool/<message id>/sent        the SuperLink's session, and the objects that it wants

Objects may hold an update in clear, so the directory is the gate's own and an entry goes as soon as
its reply has left or was stopped.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError

from flhe.errors import FlheError, ProtocolError
from flhe.gate.objects import MAX_OBJECT, ids_of, object_id
from flhe.wire import files
from flhe.wire.canonical import dumps, loads

MAX_WAITING = 4
"""Most replies in the spool: a SuperNode sends one at a time. A further one displaces the oldest."""
ANNOUNCED, SENT = "announced", "sent"


@dataclass(slots=True)
class Waiting:
    """One reply in the spool: its announcement, when it came, and the sizes of its objects."""

    folder: Path
    request: PushMessagesRequest
    created: float
    ids: frozenset[str]
    sizes: dict[str, int] = field(default_factory=dict)
    touched: float = field(default_factory=time.monotonic)
    """When its SuperNode came last, or the gate began."""
    session: str | None = None
    """The SuperLink's session; None before it has taken the announcement."""
    wanted: frozenset[str] = frozenset()

    def begin(self, session: str, wanted: Iterable[str]) -> None:
        """Keep the SuperLink's session: it takes an announcement once, and its objects in there."""
        self.wanted = frozenset(wanted)
        files.create(self.folder / SENT, dumps([session, sorted(self.wanted)]))
        self.session = session

    @property
    def name(self) -> str:
        """The reply's id, which is also the session's."""
        return self.folder.name

    @property
    def whole(self) -> bool:
        """True if all objects are here."""
        return self.ids == self.sizes.keys()

    @property
    def size(self) -> int:
        """Bytes of all objects so far."""
        return sum(self.sizes.values())

    def read(self, named: str) -> bytes:
        """Return an object."""
        if named not in self.sizes:
            raise ProtocolError("an object of the reply is missing")
        return (self.folder / named).read_bytes()


class Spool:
    """Replies in the directory `root`, which is the gate's own. Threads may share it."""

    def __init__(self, root: Path) -> None:
        files.make_private(root)
        self._root, self._lock = root, threading.Lock()
        self._waiting: dict[str, Waiting] = {}
        for folder in sorted(root.iterdir(), key=lambda path: path.stat().st_mtime):
            try:
                self._waiting[folder.name] = _load(folder)
            except (DecodeError, FlheError, LookupError, OSError, TypeError, ValueError):
                # It was never announced in full.
                shutil.rmtree(folder, ignore_errors=True)

    def announce(self, request: PushMessagesRequest) -> Waiting:
        """Begin a reply, or return the one that began; ProtocolError for a malformed tree."""
        tree = request.message_object_trees[0]
        ids = frozenset(ids_of(tree))
        with self._lock:
            found = self._waiting.get(tree.object_id)
            if found is not None:
                found.touched = time.monotonic()
                return found
            while len(self._waiting) >= MAX_WAITING:
                self._drop(next(iter(self._waiting)))
            folder = self._root / tree.object_id
            folder.mkdir(mode=0o700)
            now = time.time_ns() // 1000
            try:
                files.create(folder / ANNOUNCED, dumps([now, request.SerializeToString()]))
            except BaseException:  # the SuperNode announces it again
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._waiting[folder.name] = Waiting(folder, request, now / 1e6, ids)
            return self._waiting[folder.name]

    def find(self, name: str) -> Waiting | None:
        """Return a reply that waits, or None."""
        with self._lock:
            return self._waiting.get(name)

    def put(self, waiting: Waiting, named: str, content: bytes) -> None:
        """Keep an object; ProtocolError unless it is one of the reply's."""
        if named not in waiting.ids or object_id(content) != named:
            raise ProtocolError("an object is not one of the announced reply's")
        path = waiting.folder / named
        part = path.with_suffix(f".{threading.get_ident()}")
        with files.os_errors("write"):
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | files.SAFE, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            part.replace(path)
        with self._lock:
            waiting.sizes[named], waiting.touched = len(content), time.monotonic()

    def abandoned(self, seconds: float) -> list[str]:
        """Return the replies whose SuperNode has not come for so long."""
        before = time.monotonic() - seconds
        with self._lock:
            return [name for name, found in self._waiting.items() if found.touched < before]

    def drop(self, name: str) -> None:
        """Erase a reply."""
        with self._lock:
            if name in self._waiting:
                self._drop(name)

    def _drop(self, name: str) -> None:
        shutil.rmtree(self._waiting.pop(name).folder, ignore_errors=True)


def _load(folder: Path) -> Waiting:
    most = 2 * MAX_OBJECT
    now, encoded = loads((folder / ANNOUNCED).read_bytes(), most, "the gate's spool")
    request = PushMessagesRequest.FromString(encoded)
    ids = frozenset(ids_of(request.message_object_trees[0]))
    found = Waiting(folder, request, now / 1e6, ids)
    for name in ids:
        path = folder / name
        # A power cut may have left less of it than was written.
        if path.is_file() and object_id(content := path.read_bytes()) == name:
            found.sizes[name] = len(content)
    if (folder / SENT).exists():
        found.session, wanted = loads((folder / SENT).read_bytes(), most, "the gate's spool")
        found.wanted = frozenset(wanted)
    return found

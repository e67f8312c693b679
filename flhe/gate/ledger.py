"""Ids that came down from the SuperLink: a request that goes up may name no others.

Ids in a request could carry data. So the gate knows the nodes, runs, app bundles, messages and
objects that the SuperLink has named, and keeps them over a restart: the newest ones, in one file.

A file that cannot be written stops no message: the SuperLink has marked it as delivered, and would
not give it again. One that cannot be read counts as none: the SuperNode then begins anew.
"""

from __future__ import annotations

import threading

from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    RegisterNodeFleetResponse,
)
from flwr.proto.message_pb2 import Metadata
from flwr.proto.run_pb2 import GetRunResponse
from google.protobuf.message import DecodeError

from flhe.errors import FlheError, ProtocolError, logger
from flhe.gate.objects import ids_of, is_id
from flhe.node.store import Store
from flhe.wire.canonical import dumps, loads

NAME = "came-down"
KEPT = 64
"""Number of ids of each kind that are kept."""
MOST = 32 << 20
"""Most bytes of messages' metadata and ids that are kept: a server chooses their sizes."""
MAX_FILE = 2 * MOST
_ID = 32
"""Bytes of an object's id in the file."""


class Ledger:
    """Ids that came down, in the gate's directory `store`. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._ids: dict[str, list[int | str]] = {"node": [], "run": [], "fab": [], "answered": []}
        self._asked: dict[str, tuple[Metadata, frozenset[str]]] = {}
        if store.exists(NAME):
            try:
                ids, asked = loads(store.read(NAME), MAX_FILE, "the gate's ledger")
                self._ids.update(ids)
                for encoded, named in asked:
                    parts = (named[at : at + _ID].hex() for at in range(0, len(named), _ID))
                    self._hold(Metadata.FromString(encoded), frozenset(parts))
            except (DecodeError, FlheError, TypeError, ValueError) as error:
                logger.error("the gate's ledger begins empty: %s", error)

    def knows(self, kind: str, named: int | str) -> bool:
        """Return whether the SuperLink has named a "node", "run" or "fab", or one was "answered"."""
        with self._lock:
            return named in self._ids[kind]

    def asked(self, message: str) -> Metadata | None:
        """Return the metadata of a message that came down, or None."""
        with self._lock:
            found = self._asked.get(message)
            return None if found is None else found[0]

    def has_object(self, run: int, named: str) -> bool:
        """Return whether an object belongs to a message of a run that came down."""
        with self._lock:
            return any(m.run_id == run and named in ids for m, ids in self._asked.values())

    def note(self, path: str, body: bytes) -> None:
        """Note what a response names; a response of another form names nothing."""
        try:
            with self._lock:
                if self._note(path, body):
                    self._keep()
        except (DecodeError, ProtocolError):
            return

    def note_answered(self, message: str) -> None:
        """Note that an answer to a message has left; another one never does."""
        with self._lock:
            self._add("answered", message)
            self._keep()

    def _note(self, path: str, body: bytes) -> bool:
        match path.rpartition("/")[2]:
            case "activate-node":
                return self._add("node", ActivateNodeResponse.FromString(body).node_id)
            case "register-node":
                return self._add("node", RegisterNodeFleetResponse.FromString(body).node_id)
            case "get-run":
                run = GetRunResponse.FromString(body).run
                return is_id(run.fab_hash) and self._add("fab", run.fab_hash)
            case "pull-messages":
                return self._take(PullMessagesResponse.FromString(body))
        return False

    def _add(self, kind: str, named: int | str) -> bool:
        known = self._ids[kind]
        if named in known:
            return False
        known.append(named)
        del known[:-KEPT]
        return True

    def _take(self, response: PullMessagesResponse) -> bool:
        pairs = list(zip(response.messages_list, response.message_object_trees, strict=False))
        for message, tree in pairs:
            if is_id(message.metadata.message_id):
                self._hold(message.metadata, frozenset(ids_of(tree)))
                self._add("run", message.metadata.run_id)
        return bool(pairs)

    def _hold(self, metadata: Metadata, ids: frozenset[str]) -> None:
        self._asked.pop(metadata.message_id, None)
        self._asked[metadata.message_id] = metadata, ids
        sizes = [m.ByteSize() + _ID * len(named) for m, named in self._asked.values()]
        while len(sizes) > KEPT or sum(sizes) > MOST:  # the oldest ones go
            del self._asked[next(iter(self._asked))], sizes[0]

    def _keep(self) -> None:
        asked = [
            [metadata.SerializeToString(), bytes.fromhex("".join(sorted(ids)))]
            for metadata, ids in self._asked.values()
        ]
        try:
            self._store.write(NAME, dumps([self._ids, asked]))
        except FlheError as error:
            logger.error("the gate's ledger could not be written: %s", error)

"""Ids that came down from the SuperLink: a request that goes up may name no others.

Ids in a request could carry data. So the gate knows the nodes, runs, app bundles, messages and
objects that the SuperLink has named, and keeps them over a restart: the newest ones, in one file.
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

from flhe.errors import ProtocolError
from flhe.gate.objects import ids_of, is_id
from flhe.node.store import Store
from flhe.wire.canonical import dumps, loads

NAME = "came-down"
MAX_FILE = 64 << 20
KEPT = 64
"""Number of ids of each kind that are kept."""


class Ledger:
    """Ids that came down, in the gate's directory `store`. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._ids: dict[str, list[int | str]] = {"node": [], "run": [], "fab": [], "answered": []}
        self._asked: dict[str, tuple[Metadata, frozenset[str]]] = {}
        self._messages = PullMessagesResponse()
        if store.exists(NAME):
            ids, encoded = loads(store.read(NAME), MAX_FILE, "the gate's ledger")
            self._ids.update(ids)
            self._take(PullMessagesResponse.FromString(encoded))

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
        except (ValueError, ProtocolError):
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
            metadata = message.metadata
            if not is_id(metadata.message_id):
                continue
            ids = frozenset(ids_of(tree))
            self._asked.pop(metadata.message_id, None)
            self._asked[metadata.message_id] = metadata, ids
            self._add("run", metadata.run_id)
            self._messages.messages_list.append(message)
            self._messages.message_object_trees.append(tree)
        while len(self._asked) > KEPT:
            del self._asked[next(iter(self._asked))]
        del self._messages.messages_list[:-KEPT], self._messages.message_object_trees[:-KEPT]
        return bool(pairs)

    def _keep(self) -> None:
        self._store.write(NAME, dumps([self._ids, self._messages.SerializeToString()]))

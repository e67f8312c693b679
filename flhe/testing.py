"""Test your own app: a whole federation inside one process, in seconds.

No Ray and no SuperLink run. Yet every message passes through Flower's own wire format both ways,
and every node keeps its keys on disk as a deployed one does:

    from my_app.client_app import app
    from my_app.server_app import initial_arrays

    from flhe.node.checkpoint import open_checkpoint
    from flhe.strategies import SashFedAvg, save_sealed
    from flhe.testing import InProcessGrid


    def test_my_app_trains(tmp_path):
        with InProcessGrid(app, 4, homes=tmp_path) as grid:
            strategy = SashFedAvg(unmask="clients", min_train_nodes=4)
            result = strategy.start(grid, initial_arrays(), num_rounds=2)
        save_sealed(result, tmp_path / "model.flhe")
        model = open_checkpoint(tmp_path / "model.flhe", tmp_path / "node-0")
        assert set(model.masters) == set(initial_arrays())

Nodes can be dead (an error reply) or silent (none), from any round on. A `tap` gets every byte that
a SuperLink would get.

This is the one module that uses Flower's internals: its wire format has no public entry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Tap = Callable[[str, int, bytes], None]
"""(direction "up" or "down", node id, bytes of one object on the wire) -> None."""

UNAVAILABLE = 5
"""Flower's error code of an unavailable node."""
RAISED = 2
"""Flower's error code of an app that raised."""


class InProcessGrid(Grid):
    """A Grid whose nodes run in threads of this process; close it, or use it in a `with`.

    A waiting message is not a copy: its receiver unpacks it.

    Parameters
    ----------
    app : ClientApp
        App of every node.
    nodes : int
        Number of nodes; their ids are 100, 101, ...
    homes : Path, optional
        Directory of the nodes' keys and state: `homes/node-0` and so on. They then trust each other
        at first use, without a roster. By default `node_config` names it, or all share $FLHE_HOME.
    run_id : int
        Flower's run id.
    run_config : mapping, optional
        Run config of every node.
    node_config : callable, optional
        Partition id -> node config beyond partition-id and num-partitions; it overrides `homes`.
    workers : int
        Number of threads for nodes.
    tap : callable, optional
        Gets every object on the wire, as bytes.

    Attributes
    ----------
    dead, silent : set of int
        Ids of nodes that answer with an error, or not at all; change them at any time.
    contexts : dict of int to Context
        Of each node, by id.
    """

    nodes_work_here = True
    """Tells strategies to leave this process's settings unchanged."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        *,
        homes: Path | None = None,
        run_id: int = 7,
        run_config: Mapping[str, Any] | None = None,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
        workers: int = 1,
        tap: Tap | None = None,
    ) -> None:
        self.app = app
        self.dead: set[int] = set()
        self.silent: set[int] = set()
        self.tap = tap
        self._run = Run.create_empty(run_id=run_id)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1
        self.contexts = {
            100 + i: Context(
                run_id=run_id,
                node_id=100 + i,
                node_config={
                    "partition-id": i,
                    "num-partitions": nodes,
                    **({"flhe-home": f"{homes}/node-{i}"} if homes else {}),
                    **({"flhe-trust": "first-use"} if homes else {}),
                    **(node_config(i) if node_config else {}),
                },
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i in range(nodes)
        }
        self._box: dict[str, _Packed] = {}
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="node")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for nodes that are still running."""
        self._pool.shutdown(wait=True)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Unused by current strategies."""
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes, dead ones included, as a SuperLink would for a while."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start the nodes on `messages`; return their ids."""
        ids = []
        for message in messages:
            with self._lock:
                self._count += 1
                message_id = f"{self._count:064x}"
            ids.append(message_id)
            node = message.metadata.dst_node_id
            packed = self._pack("down", node, message, message_id)
            if node in self.dead:
                self._put(message_id, self._error(packed.unpack(), UNAVAILABLE, "Node unavailable"))
            elif node not in self.silent:
                self._pool.submit(self._work, node, packed, message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, each once."""
        with self._lock:
            there = [self._box.pop(i) for i in list(message_ids) if i in self._box]
        return [packed.unpack() for packed in there]

    def wait_for_reply(self, seconds: float) -> None:
        """Wait for the next reply, at most `seconds` or a moment: another thread may wait too."""
        self._arrived.wait(min(seconds, 0.1))
        self._arrived.clear()  # before the server looks, so it misses none

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, then wait for all replies or for `timeout` seconds (an hour by default)."""
        pending = set(self.push_messages(messages))
        replies: list[Message] = []
        deadline = time.monotonic() + (3600 if timeout is None else timeout)
        while pending and (left := deadline - time.monotonic()) > 0:
            for reply in self.pull_messages(pending):
                replies.append(reply)
                pending.discard(reply.metadata.reply_to_message_id)
            if pending:
                self.wait_for_reply(left)
        return replies

    def _work(self, node: int, packed: _Packed, message_id: str) -> None:
        message = packed.unpack()
        try:
            self._put(message_id, self.app(message, self.contexts[node]))
        except Exception as error:  # as Flower: its text goes to the server
            self._put(message_id, self._error(message, RAISED, f"{type(error)}:<'{error}'>"))

    def _put(self, message_id: str, reply: Message) -> None:
        node = reply.metadata.src_node_id
        self._keep(message_id, self._pack("up", node, reply, message_id + "-reply"))

    def _keep(self, message_id: str, reply: _Packed) -> None:
        with self._lock:
            self._box[message_id] = reply
        self._arrived.set()

    @staticmethod
    def _error(message: Message, code: int, reason: str) -> Message:
        return Message(Error(code=code, reason=reason), reply_to=message)

    def _pack(self, direction: str, node: int, message: Message, message_id: str) -> _Packed:
        packed = _Packed(message, message_id)
        if self.tap is not None:
            for content in packed.contents():
                self.tap(direction, node, content)
        return packed


class _Packed:
    """A message split into the objects that travel; its receiver reassembles it."""

    def __init__(self, message: Message, message_id: str) -> None:
        self._message_id = message_id
        with no_object_id_recompute():
            objects = get_all_nested_objects(message)
            self._head = message.object_id
            # Chunks are views of immutable bytes; other data may change once the sender continues.
            self._contents = _Contents(
                (name, part if isinstance(part, ArrayChunk) else part.deflate())
                for name, part in objects.items()
            )

    def contents(self) -> Iterator[bytes]:
        """Yield the objects as they travel, one at a time."""
        return (self._contents[name] for name in self._contents)

    def unpack(self) -> Message:
        """Return the message, as Flower unpacks it; call it once."""
        arrived = inflate_object_from_contents(
            self._head,
            self._contents,  # type: ignore[arg-type]  # its items are bytes
            keep_object_contents=True,
            objects=_Objects(),
        )
        self._contents = _Contents()
        assert isinstance(arrived, Message)
        arrived.metadata.__dict__["_message_id"] = self._message_id
        return arrived


class _Contents(dict[str, "bytes | ArrayChunk"]):
    """Objects by name, as bytes: chunks are converted one at a time on access."""

    def __getitem__(self, name: str) -> bytes:
        item = super().__getitem__(name)
        return item.deflate() if isinstance(item, ArrayChunk) else item


class _Objects(dict[str, InflatableObject]):
    """Objects that Flower has unpacked so far, without the chunks, which arrays have copied."""

    def __setitem__(self, name: str, item: InflatableObject) -> None:
        if not isinstance(item, ArrayChunk):
            super().__setitem__(name, item)

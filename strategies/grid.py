"""StreamGrid: yields replies as they arrive, so that aggregation holds one of them at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

from flwr.app import Message
from flwr.serverapp import Grid

from flhe.errors import FlheError
from flhe.math.buffers import give_back_large
from flhe.strategies.overhead import phase_of
from flhe.strategies.report import MeteredGrid

T = TypeVar("T")

TRANSPORT = ("grpc", "httpcore", "httpx")
"""Packages whose errors are of the connection to the SuperLink, as are the system's own."""
POLL = (0.02, 1.0)
"""Seconds between looking for replies: at first, and at most, while none arrives."""


class StreamGrid(MeteredGrid):
    """A Grid whose `send_and_receive` pulls and yields each reply alone, once it is there.

    Messages are pushed one by one, so that each id belongs to a known node. Flower's list of ids
    leaves out a lost node in memory, and has an empty id for it over HTTP. Equal contents still
    travel once: the SuperLink asks for missing ones. After a call, `silent` holds the nodes that
    did not reply in time, and `unread` those whose reply is no message.

    The grid keeps no yielded reply: its memory is free once its receiver drops it, which should be
    before the next one.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        if not getattr(grid, "nodes_work_here", False):  # their training would get slower
            give_back_large()
        self.silent: set[int] = set()
        self.unread: set[int] = set()
        self._nodes: dict[str, int] = {}
        self._senders: WeakKeyDictionary[Message, int] = WeakKeyDictionary()

    def node_of(self, reply: Message) -> int:
        """Return the node that was asked; its reply's metadata may name another one."""
        return self._senders[reply]

    def asked(self, node: int) -> tuple[int, str]:
        """Return the run id, and the id of the last message to a node."""
        return self.run.run_id, next(name for name, to in self._nodes.items() if to == node)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push `messages` now; yield replies until all are in or `timeout` seconds have passed."""
        if timeout is None or not timeout < float("inf"):
            raise ValueError("StreamGrid: a timeout is needed, nothing waits without bound")
        deadline = time.monotonic() + timeout
        self._nodes = {}
        self.silent, self.unread = set(), set()
        request = 0
        for message in messages:
            request = request or self.meter.open(phase_of(message))
            node = message.metadata.dst_node_id
            pushed = [mid for mid in self.push_messages([message]) if mid]
            if pushed:
                self._nodes[pushed[0]] = node
            else:
                self.silent.add(node)
        return self._replies(deadline, request)

    def fold(
        self,
        replies: Iterable[Message],
        trouble: dict[int, str],
        read: Callable[[int, Message], T],
        silent: str = "no reply in time",
    ) -> Iterator[tuple[int, T]]:
        """Yield (node, `read`'s result for its reply), with one reply in memory at a time.

        `trouble` gets the refusals of `read`, and `silent` for nodes without a reply.
        """
        for reply in replies:
            node = self.node_of(reply)
            try:
                value = read(node, reply)
            except FlheError as error:
                trouble[node] = str(error)
            else:
                yield node, value
                del value
            del reply  # before the next one is unpacked
        trouble.update(dict.fromkeys(self.silent, silent))
        trouble.update(dict.fromkeys(self.unread, "Flower cannot read its reply"))

    def _replies(self, deadline: float, request: int) -> Iterator[Message]:
        pending = set(self._nodes)
        pause = POLL[0]
        try:
            while pending:
                arrived = False
                for message_id in list(pending):
                    node = self._nodes[message_id]
                    try:
                        replies = list(self.pull_messages([message_id]))
                    except Exception as error:
                        origin = type(error).__module__.partition(".")[0]
                        if isinstance(error, FlheError | OSError) or origin in TRANSPORT:
                            raise
                        # Flower unpacks here what a node has pushed.
                        self.unread.add(node)
                        pending.discard(message_id)
                        continue
                    while replies:
                        pending.discard(message_id)
                        arrived = True
                        self._senders[replies[0]] = node
                        # No name for it: it would be kept through the next pull.
                        yield replies.pop(0)
                if not pending or time.monotonic() >= deadline:
                    break
                pause = POLL[0] if arrived else min(2 * pause, POLL[1])
                # A grid may know when to look.
                wait = getattr(self._grid, "wait_for_reply", time.sleep)
                wait(min(pause, max(deadline - time.monotonic(), 0.0)))
            self.silent |= {self._nodes[message_id] for message_id in pending}
        finally:  # also if the caller stops early
            self.meter.close(request)

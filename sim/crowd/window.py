"""A grid that hands Flower's simulation engine a few messages at a time.

The engine looks, for every node in turn, through all messages that wait: N nodes by N messages, which
at a thousand takes nine tenths of its process (flwr 1.41, `add_messages_to_queue`). With never more
than a few for each actor under way it takes N by those few, and no actor waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from flhe.errors import FlheError
from flhe.strategies.report import MeteredGrid
from flhe_app.environment import cpus

EACH = 4
"""Messages under way for each actor."""


class Window(MeteredGrid):
    """Wraps the grid of a simulation; what it takes it keeps until there is room.

    So many messages are with it at a time; 0 for EACH an actor, of which each processor has one.
    """

    def __init__(self, grid: Grid, size: int = 0) -> None:
        super().__init__(grid)
        self._size = size or EACH * cpus()
        self._count = 0
        self._waiting: deque[tuple[str, Message]] = deque()
        self._under_way: dict[str, str] = {}
        """Our id -> the engine's."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages; returns ids of our own."""
        ids = []
        for message in messages:
            self._count += 1
            ids.append(f"{self._count:064x}")
            self._waiting.append((ids[-1], message))
        self._fill()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there, to our ids."""
        replies: list[Message] = []
        for own in message_ids:
            if own not in self._under_way:
                continue
            for reply in self._grid.pull_messages([self._under_way[own]]):
                # Flower has no other way to say what a message replies to.
                reply.metadata.__dict__["_reply_to_message_id"] = own
                replies.append(reply)
                del self._under_way[own]
        self._fill()
        return replies

    def _fill(self) -> None:
        while self._waiting and len(self._under_way) < self._size:
            own, message = self._waiting.popleft()
            sent = list(self._grid.push_messages([message]))
            if not sent or not sent[0]:
                raise FlheError(f"node {message.metadata.dst_node_id} takes no message")
            self._under_way[own] = sent[0]

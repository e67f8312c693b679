"""Grids: one notes what each phase of a run costs the server, and what travels for it; one waits.

A phase is what the server asks for: "advertise", "round", "consist", ...; what it asks apps without
our record is "other". A phase lasts from its first message to the first of the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from flhe.errors import FlheError
from flhe.mods import records
from flhe.strategies.report import MeteredGrid
from flhe_app.environment import cpus

PER_ROUND = ("round", "consist", "unmask")
"""Phases of a round; all others are of an epoch."""


@dataclass(slots=True)
class Phase:
    """One phase of one round."""

    name: str  # What was asked for
    round: int  # 0 before the first
    server_s: float = 0.0  # Seconds of processor of the server's thread, for messages and replies
    grid_s: float = 0.0  # The same in Flower's grid, and looking for replies
    up_bytes_total: int = 0  # Payload of all nodes
    down_bytes_total: int = 0  # The same, to them


class PhaseGrid(MeteredGrid):
    """Wraps any grid; to be used by one thread."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.phases: list[Phase] = []
        self.nodes_work_here = getattr(grid, "nodes_work_here", False)
        self._by_message: dict[str, Phase] = {}
        self._works = True
        """Whether the server works on a message or a reply, and does not look for one."""
        self._mark = time.thread_time()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """As the grid's, noted."""
        ids: list[str] = []
        for message in messages:
            phase = self._enter(message)
            phase.down_bytes_total += records.message_bytes(message.content)
            self._pass(phase)
            sent = list(self._grid.push_messages([message]))
            self._works = False
            self._pass(phase)
            self._works = True
            self._by_message |= dict.fromkeys(sent, phase)
            ids += sent
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As the grid's, noted; a look that finds nothing costs no look at the clock."""
        current = self.phases[-1]
        if self._works:
            self._pass(current)
            self._works = False
        replies = list(self._grid.pull_messages(message_ids))
        if not replies:
            return replies
        self._pass(current)
        self._works = True
        for reply in replies:
            phase = self._by_message.pop(reply.metadata.reply_to_message_id, current)
            if not reply.has_error():
                phase.up_bytes_total += records.message_bytes(reply.content)
        return replies

    def end(self) -> None:
        """The last phase is over."""
        if self.phases:
            self._pass(self.phases[-1])

    def _enter(self, message: Message) -> Phase:
        """The phase that a message is of: the last one, or a new one."""
        record = records.find_config(message.content, records.STAGE)
        name = "other" if record is None else str(record["stage"])
        last = self.phases[-1] if self.phases else None
        number = 0 if last is None else last.round
        if record is not None and name in PER_ROUND:
            number = int(str(record["round"]))
        if last is None or (last.name, last.round) != (name, number):
            if last is not None:
                self._pass(last)
            last = Phase(name, number)
            self.phases.append(last)
            self._mark = time.thread_time()
        return last

    def _pass(self, phase: Phase) -> None:
        """Book what has passed since the last mark."""
        now = time.thread_time()
        if self._works:
            phase.server_s += now - self._mark
        else:
            phase.grid_s += now - self._mark
        self._mark = now


EACH = 4
"""Messages under way for each actor."""


class Window(MeteredGrid):
    """Wraps the grid of a simulation; what it takes it keeps until there is room.

    The engine looks, for every node in turn, through all messages that wait: N nodes by N messages,
    which at a thousand takes nine tenths of its process (flwr's `add_messages_to_queue`). With
    never more than a few for each actor under way it takes N by those few, and no actor waits.

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

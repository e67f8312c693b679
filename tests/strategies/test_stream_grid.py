"""StreamGrid: replies one by one, every wait bounded, every node named."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flhe.strategies import grid as grid_module
from flhe.strategies.grid import POLL, StreamGrid
from tests.strategies.puppets import Clock


class Wire:
    """A SuperLink: replies are there at given times, and given once; nothing waits for all."""

    def __init__(self, clock: Clock, arrive: dict[int, float], unknown: Any = "omit") -> None:
        self.clock = clock
        self.arrive = arrive
        self.unknown = unknown
        self.sent: dict[str, Message] = {}
        self.due: dict[str, float] = {}
        self.pulled: list[list[str]] = []
        self.by_superlink: set[int] = set()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        assert isinstance(messages, list)  # the HTTP grid iterates twice
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.arrive:
                ids += [] if self.unknown == "omit" else [self.unknown]
                continue
            ids.append(f"{len(self.sent):064x}")
            self.sent[ids[-1]] = message
            self.due[ids[-1]] = self.clock.now + self.arrive[node]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = list(message_ids)
        self.pulled.append(asked)
        return [self._reply(i, self.sent.pop(i)) for i in asked if self._there(i)]

    def _there(self, message_id: str) -> bool:
        return message_id in self.sent and self.due[message_id] <= self.clock.now

    def _reply(self, message_id: str, message: Message) -> Message:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = message_id
        if node not in self.by_superlink:
            return Message(RecordDict({"node": ConfigRecord({"id": node})}), reply_to=message)
        reply = Message(Error(code=5, reason="Node unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(grid_module, "time", clock)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
    return clock


def messages(*nodes: int) -> list[Message]:
    return [Message(RecordDict({"x": ConfigRecord({"a": 1})}), n, "train") for n in nodes]


def stream_over(wire: Wire) -> StreamGrid:
    return StreamGrid(cast(Grid, wire))


def ask(wire: Wire, *nodes: int, timeout: float = 60) -> tuple[list[int], set[int]]:
    """Nodes whose replies come, in order, and those that are silent."""
    stream = stream_over(wire)
    replies = stream.send_and_receive(messages(*nodes), timeout=timeout)
    return [stream.node_of(reply) for reply in replies], stream.silent


def test_replies_come_as_they_arrive(clock: Clock) -> None:
    stream = stream_over(Wire(clock, {1: 5.0, 2: 0.0, 3: 2.0}))
    when = {}
    for reply in stream.send_and_receive(messages(1, 2, 3), timeout=60):
        when[stream.node_of(reply)] = clock.now - 1000
    assert list(when) == [2, 3, 1]
    assert when[2] == 0
    assert all(due <= when[node] <= due + POLL[1] for node, due in ((3, 2), (1, 5)))
    assert stream.silent == set()


def test_each_reply_is_pulled_alone_and_gone_when_its_receiver_lets_go_of_it(clock: Clock) -> None:
    wire = Wire(clock, dict.fromkeys(range(1, 6), 0.0))
    left = []
    for reply in stream_over(wire).send_and_receive(messages(1, 2, 3, 4, 5), timeout=60):
        seen = weakref.ref(reply)
        del reply
        assert seen() is None
        left.append(len(wire.sent))  # the others still lie at the SuperLink
    assert left == [4, 3, 2, 1, 0]
    assert all(len(asked) == 1 for asked in wire.pulled)


@pytest.mark.parametrize("timeout", [0.0, 0.5, 7.0, 3600.0])
def test_silent_nodes_are_named_when_time_is_up(clock: Clock, timeout: float) -> None:
    wire = Wire(clock, {1: 0.0, 2: 1e9, 3: 1e9})
    assert ask(wire, 1, 2, 3, timeout=timeout) == ([1], {2, 3})
    assert clock.now - 1000 == pytest.approx(timeout)


def test_a_reply_at_the_last_moment_is_taken(clock: Clock) -> None:
    assert ask(Wire(clock, {1: 10.0}), 1, timeout=10) == ([1], set())
    assert ask(Wire(clock, {1: 10.01}), 1, timeout=10) == ([], {1})


def test_time_spent_between_replies_counts(clock: Clock) -> None:
    """Whoever adds up slowly does not extend the round."""
    stream = stream_over(Wire(clock, {1: 0.0, 2: 1e9}))
    for _ in stream.send_and_receive(messages(1, 2), timeout=10):
        clock.now += 100
    assert clock.now == 1100  # nobody slept
    assert stream.silent == {2}


@pytest.mark.parametrize("unknown", ["omit", "", None])
def test_a_node_that_the_grid_does_not_know(clock: Clock, unknown: Any) -> None:
    replies, silent = ask(Wire(clock, {1: 0.0, 3: 0.0, 4: 1.0}, unknown), 1, 2, 3, 5, 4)
    assert (sorted(replies), silent) == ([1, 3, 4], {2, 5})
    assert clock.now < 1000 + 3  # nobody waited for them


def test_an_error_by_the_superlink_is_its_nodes(clock: Clock) -> None:
    wire = Wire(clock, {1: 0.0, 2: 0.0})
    wire.by_superlink = {2}
    stream = stream_over(wire)
    replies = stream.send_and_receive(messages(1, 2), timeout=60)
    errors = {stream.node_of(r): (r.has_error(), r.metadata.src_node_id) for r in replies}
    assert errors == {1: (False, 1), 2: (True, 1)}


@pytest.mark.parametrize("how", [{}, {"timeout": float("inf")}, {"timeout": float("nan")}], ids=str)
def test_a_bound_is_a_number_of_seconds(clock: Clock, how: dict[str, float]) -> None:
    wire = Wire(clock, {1: 0.0})
    with pytest.raises(ValueError, match="a timeout is needed"):
        stream_over(wire).send_and_receive(messages(1), **how)
    assert not wire.sent  # nobody is asked for what nobody will fetch

"""The wire of `flhe.testing.InProcessGrid`: messages arrive as they were sent, and a tap sees all."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.testing import InProcessGrid


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


class Echo:
    """A node that answers with what it got."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    def __call__(self, message: Message, _context: Any) -> Message:
        self.got.append(message)
        return Message(message.content, reply_to=message)


def content() -> RecordDict:
    arrays = {"zeros": np.zeros(1 << 22, np.float32), "ones": np.ones(3), "none": np.zeros(0)}
    return RecordDict(
        {
            "arrays": ArrayRecord({name: Array(a) for name, a in arrays.items()}),
            "config": ConfigRecord({"round": 1}),
        }
    )


def wait_for(grid: InProcessGrid, ids: list[str]) -> list[Message]:
    replies: list[Message] = []
    deadline = time.monotonic() + 20
    while len(replies) < len(ids):
        assert time.monotonic() < deadline
        replies += grid.pull_messages(ids)
    return replies


def test_a_message_arrives_as_it_was_sent() -> None:
    """Also where its arrays repeat one block, and where its sender has gone on meanwhile."""
    echo = Echo()
    grid = InProcessGrid(echo, 2)  # type: ignore[arg-type]
    sent = content()
    try:
        busy = threading.Event()
        grid._pool.submit(busy.wait, 20)
        ids = grid.push_messages([Message(sent, 100 + i, "train") for i in range(2)])
        sent["config"]["round"] = 2
        sent["arrays"]["ones"] = Array(np.zeros(3))
        busy.set()
        replies = wait_for(grid, ids)
    finally:
        grid.close()
    for message in (*echo.got, *replies):
        assert message.content == content()
    assert [m.metadata.message_id for m in echo.got] == ids
    assert sorted(r.metadata.reply_to_message_id for r in replies) == ids


def test_the_tap_sees_every_object_each_way() -> None:
    seen: list[tuple[str, int, bytes]] = []
    grid = InProcessGrid(Echo(), 1, tap=lambda *what: seen.append(what))  # type: ignore[arg-type]
    try:
        wait_for(grid, grid.push_messages([Message(content(), 100, "train")]))
    finally:
        grid.close()
    down = {data for way, node, data in seen if (way, node) == ("down", 100)}
    up = {data for way, node, data in seen if (way, node) == ("up", 100)}
    assert len(down) == len(up) > 8
    assert sum(map(len, down)) > 5 << 20
    assert len(down & up) >= len(down) - 1  # all but the message itself

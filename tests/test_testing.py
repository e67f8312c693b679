"""`flhe.testing`: nodes fail as they are told to, messages arrive as sent, and a tap sees all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from flhe.testing import RAISED, UNAVAILABLE, InProcessGrid
from tests.patience import PATIENCE_S, until


def asked(node: int) -> Message:
    return Message(RecordDict(), node, "train")


def test_nodes_fail_as_they_are_told_to(tmp_path: Path) -> None:
    app, seen = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 3:
            raise ValueError("on purpose")
        if context.node_config["partition-id"] == 4:
            return None  # type: ignore[return-value]
        return Message(RecordDict(), reply_to=message)

    def tap(way: str, node: int, data: bytes) -> None:
        seen.append((way, node, len(data)))

    with InProcessGrid(
        app, 5, homes=tmp_path, node_config=lambda i: {"flhe-trust": f"t{i}"}, tap=tap
    ) as grid:
        grid.dead.add(101)
        grid.silent.add(102)
        others = [node for node in grid.get_node_ids() if node != 102]
        replies = grid.send_and_receive([asked(node) for node in others], timeout=PATIENCE_S)
        assert grid.send_and_receive([asked(102)], timeout=0.1) == []
    by_node = {reply.metadata.src_node_id: reply for reply in replies}
    assert set(by_node) == {100, 101, 103, 104}
    assert not by_node[100].has_error()
    assert (by_node[101].error.code, by_node[103].error.code) == (UNAVAILABLE, RAISED)
    assert "on purpose" in str(by_node[103].error.reason)
    assert "NoneType" in str(by_node[104].error.reason)
    assert {way for way, node, _ in seen if node == 100} == {"up", "down"}
    config = grid.contexts[100].node_config
    assert (config["flhe-home"], config["flhe-trust"]) == (str(tmp_path / "node-0"), "t0")


# --- the wire ---


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


def test_a_message_arrives_as_it_was_sent_and_the_tap_sees_every_object_each_way() -> None:
    """Also where its arrays repeat one block, and where its sender has gone on meanwhile."""
    echo, seen = Echo(), list[tuple[str, int, bytes]]()
    sent, busy = content(), threading.Event()
    with InProcessGrid(echo, 2, tap=lambda *what: seen.append(what)) as grid:  # type: ignore[arg-type]
        grid._pool.submit(busy.wait, PATIENCE_S)
        ids = grid.push_messages([Message(sent, 100 + i, "train") for i in range(2)])
        sent["config"]["round"] = 2
        sent["arrays"]["ones"] = Array(np.zeros(3))
        busy.set()
        replies: list[Message] = []

        def all_came() -> bool:
            replies.extend(grid.pull_messages(ids))
            return len(replies) == len(ids)

        until(all_came)
    for message in (*echo.got, *replies):
        assert message.content == content()
    assert [m.metadata.message_id for m in echo.got] == ids
    assert sorted(r.metadata.reply_to_message_id for r in replies) == ids
    down = {data for way, node, data in seen if (way, node) == ("down", 100)}
    up = {data for way, node, data in seen if (way, node) == ("up", 100)}
    assert len(down) == len(up) > 8
    assert sum(map(len, down)) > 5 << 20
    assert len(down & up) >= len(down) - 1  # all but the message itself

"""`flhe.testing`: nodes fail as they are told to."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.testing import RAISED, UNAVAILABLE, InProcessGrid


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
        replies = grid.send_and_receive([asked(node) for node in grid.get_node_ids()], timeout=0.5)
    by_node = {reply.metadata.src_node_id: reply for reply in replies}
    assert set(by_node) == {100, 101, 103, 104}
    assert not by_node[100].has_error()
    assert (by_node[101].error.code, by_node[103].error.code) == (UNAVAILABLE, RAISED)
    assert "on purpose" in str(by_node[103].error.reason)
    assert "NoneType" in str(by_node[104].error.reason)
    assert {way for way, node, _ in seen if node == 100} == {"up", "down"}
    config = grid.contexts[100].node_config
    assert (config["flhe-home"], config["flhe-trust"]) == (str(tmp_path / "node-0"), "t0")

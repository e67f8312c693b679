"""`flhe.testing`: the README's example runs as it stands, and nodes fail as they are told to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import sash_fedavg, save_sealed
from flhe.testing import RAISED, UNAVAILABLE, InProcessGrid
from flhe_lab.bench.synthetic import client_app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(
    r"^```python\n(.*?)^```",
    README.partition("\n### Test it\n")[2].partition("\n### ")[0],
    re.M | re.S,
)


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    scope: dict[str, Any] = {
        "app": client_app(),
        "arrays": ArrayRecord({"weights": Array(np.zeros((4, 3), np.float32))}),
        "sash_fedavg": sash_fedavg,
        "save_sealed": save_sealed,
        "open_checkpoint": open_checkpoint,
    }
    exec(EXAMPLE, scope)
    scope["test_my_app_trains"](tmp_path)
    assert len(list(tmp_path.glob("node-*"))) == 5


def asked(node: int) -> Message:
    return Message(RecordDict(), node, "train")


def test_nodes_fail_as_they_are_told_to(tmp_path: Path) -> None:
    app, seen = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 3:
            raise ValueError("on purpose")
        return Message(RecordDict(), reply_to=message)

    def tap(way: str, node: int, data: bytes) -> None:
        seen.append((way, node, len(data)))

    with InProcessGrid(
        app, 4, homes=tmp_path, node_config=lambda i: {"flhe-trust": f"t{i}"}, tap=tap
    ) as grid:
        grid.dead.add(101)
        grid.silent.add(102)
        replies = grid.send_and_receive([asked(node) for node in grid.get_node_ids()], timeout=0.5)
    by_node = {reply.metadata.src_node_id: reply for reply in replies}
    assert set(by_node) == {100, 101, 103}
    assert not by_node[100].has_error()
    assert (by_node[101].error.code, by_node[103].error.code) == (UNAVAILABLE, RAISED)
    assert "on purpose" in str(by_node[103].error.reason)
    assert {way for way, node, _ in seen if node == 100} == {"up", "down"}
    config = grid.contexts[100].node_config
    assert (config["flhe-home"], config["flhe-trust"]) == (str(tmp_path / "node-0"), "t0")

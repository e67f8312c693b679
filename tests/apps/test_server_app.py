"""The server app: it fails when it should, and writes what it got."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flhe.apps import server_app
from flhe.apps.settings import Settings
from flhe.apps.tasks import task_named
from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.strategies.plain import MeteredFedAvg
from flhe.strategies.report import Reporter


class EmptyGrid(Grid):
    """A grid that one node of many has joined."""

    run = None
    set_run = create_message = push_messages = pull_messages = send_and_receive = None

    def get_node_ids(self) -> list[int]:
        return [1]


def test_a_failure_is_reported_and_raised(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.jsonl"
    config = {"task": "mnist", "report": str(report)}
    ctx = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    with pytest.raises(ConfigError, match="task='mnist' is unknown"):
        server_app.app(EmptyGrid(), ctx)
    event = json.loads(report.read_text())
    assert event["event"] == "failed"
    assert event["error"].startswith("ConfigError: task='mnist'")


def test_missing_nodes_end_the_run() -> None:
    settings = Settings(scheme="plain", nodes=3, join_timeout=0.1)
    with pytest.raises(QuorumError, match=r"1 of nodes=3 connected .*num-supernodes=3"):
        server_app.run(EmptyGrid(), settings, Reporter(None))


def test_strategies() -> None:
    task, reporter = task_named("digits"), Reporter(None)
    plain = server_app.make_strategy(Settings(scheme="plain", nodes=4), task, reporter)
    assert type(plain) is MeteredFedAvg
    assert plain.min_available_nodes == plain.min_train_nodes == 4
    sealed = server_app.make_strategy(Settings(), task, reporter)
    assert type(sealed).__name__ == "HEStrategy"


def test_most_examples_covers_any_node() -> None:
    task = task_named("digits")
    assert server_app.most_examples(Settings(), task) == 288
    assert server_app.most_examples(Settings(partition="dirichlet"), task) == task.train_size


def test_writes_the_sealed_bytes_for_the_owner_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.flhe"
    sealed = ArrayRecord({"checkpoint": Array("uint8", (3,), "flhe.checkpoint/1", b"abc")})
    server_app.write_model(path, Result(arrays=sealed), sealed=True)
    assert path.read_bytes() == b"abc"
    assert path.stat().st_mode & 0o777 == 0o600


def test_never_writes_arrays_in_clear_for_a_sealed_model(tmp_path: pathlib.Path) -> None:
    clear = ArrayRecord({"checkpoint": Array(np.zeros(3, np.float32))})
    with pytest.raises(ProtocolError, match="the model was not written"):
        server_app.write_model(tmp_path / "model.flhe", Result(arrays=clear), sealed=True)


def test_writes_plain_arrays_under_the_name_given(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.bin"
    server_app.write_model(path, Result(ArrayRecord({"w": Array(np.arange(3))})), sealed=False)
    assert np.load(path)["w"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="name a file in a directory that exists"):
        server_app.write_model(tmp_path / "no/model", Result(), sealed=False)

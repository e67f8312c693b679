"""flhe bench memory: a federation that is what it says, and what is told of its memory."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError, FlheError
from flhe.mods import records
from flhe.strategies.resident import resident
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_app.processes import Children
from flhe_lab.bench import memory, one_process, synthetic
from flhe_lab.bench.memory import Memory
from flhe_lab.crowd import deployment

ROWS = [
    Memory("server", 3, 1_000, 2, 100_000, 108_000, 70.0),
    Memory("server", 20, 1_000, 2, 100_000, 110_000, 300.0),
    Memory("process", 3, 10_000, 2, 200_000, 440_000, 40.0),
]


def test_the_model_is_random_in_layers_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "LAYER", 400)
    model = records.to_numpy(synthetic.initial(1_000))
    assert {name: a.shape for name, a in model.items()} == {
        "layer-0": (400,),
        "layer-1": (400,),
        "layer-2": (200,),
    }
    values = np.concatenate(list(model.values()))
    assert values.dtype == np.float32
    assert np.unique(values).size > 990
    again = records.to_numpy(synthetic.initial(1_000))
    assert all(np.array_equal(model[name], again[name]) for name in model)


def test_a_federation_in_one_process_adds_what_its_clients_add(tmp_path: Path) -> None:
    rounds: list[int] = []
    idle, peak = one_process.federate(5_000, 3, 2, tmp_path, rounds.append)
    assert rounds == [1, 2]
    assert 10 << 20 < idle <= peak + (4 << 20)  # the system counts pages in batches
    (path,) = (tmp_path / "node-1").glob("runs/*/model")
    model = Model.from_bytes(path.read_bytes())
    assert model.round == 2
    before = records.to_numpy(synthetic.initial(5_000))["layer-0"]
    mean = float(synthetic.STEP) * (1 + 2 + 3) / 3
    assert np.abs(model.masters["layer-0"] - before - 2 * mean).max() < mean / 1000


def test_the_process_writes_down_its_rounds_and_its_memory(tmp_path: Path) -> None:
    result = tmp_path / "result"
    one_process.main("1000", "3", "1", str(tmp_path), str(result))
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    assert lines[0] == {"round": 1}
    assert set(lines[1]) == {"idle", "peak"}


def test_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    row = memory.process_memory(20_000, rounds=1, timeout=120, step=said.append)
    assert said == ["starting", "round 1 is over"]
    assert (row.what, row.nodes, row.values, row.rounds) == ("process", 3, 20_000, 1)
    assert 10 << 20 < row.idle_bytes <= row.peak_bytes < 2 << 30
    assert row.seconds > 0
    assert capsys.readouterr().out == ""


def test_what_goes_wrong_in_that_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FlheError, match="took more than 0 s"):
        memory.process_memory(1_000, timeout=0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FlheError, match="the federation in one process failed: exited with 1"):
        memory.process_memory(1_000, timeout=60)


class FakeDeployment:
    """A deployment whose ServerApp is this process."""

    def __init__(self, nodes: int, config: dict[str, Any], timeout: float) -> None:
        assert (config["nodes"], config["timeout"]) == (nodes, timeout)

    def run(self, heard: Callable[[dict[str, Any]], None], tick: Callable[[], None]) -> None:
        tick()
        heard({"event": "idle", "pid": os.getpid(), "resident": 1_000})
        tick()
        heard({"event": "round", "round": 1})
        heard({"event": "done", "peak": 5_000})


def test_the_peak_of_a_server_is_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "Deployment", FakeDeployment)
    said: list[str] = []
    row = memory.server_memory(4, 2_000, 1, step=said.append)
    assert said == ["starting", "round 1 is over"]
    assert row.idle_bytes == 1_000
    assert row.peak_bytes > 10 << 20  # of this process
    assert row.above_idle == row.peak_bytes - 1_000
    assert row.models == row.above_idle / 8_000


def test_all_of_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "Deployment", FakeDeployment)
    monkeypatch.setattr(
        memory,
        "process_memory",
        lambda values, rounds, step: Memory("process", 3, values, rounds, 1, 2, 0.1),
    )
    seen: list[tuple[int, int, str]] = []
    rows = memory.memory(1_000, 5, 2, progress=lambda *step: seen.append(step))
    assert [(r.what, r.nodes, r.values) for r in rows] == [
        ("server", 3, 1_000),
        ("server", 5, 1_000),
        ("process", 3, 10_000),
    ]
    assert [step[0] for step in seen] == list(range(len(seen)))
    assert {step[1] for step in seen} == {9}
    assert seen[0][2] == "3 nodes: starting"


@pytest.mark.parametrize("sizes", [(0, 20, 2), (1_000, 3, 2), (1_000, 20, 0)])
def test_sizes_that_cannot_be_measured(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="memory needs"):
        memory.memory(*sizes)


def test_what_does_not_fit_the_machine_or_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="lower --cohort or --values"):
        memory.check(1000, 10**12)
    monkeypatch.setattr(memory, "find_spec", lambda name: None if name == "psutil" else object())
    with pytest.raises(ConfigError, match=r"\[apps\] extra, missing: psutil"):
        memory.check(3, 1)


def test_what_is_told() -> None:
    assert memory.growth(ROWS) == pytest.approx(10 / 8)
    assert memory.growth(ROWS[1:]) is None
    assert ROWS[2].models == 6
    found = memory.to_data(ROWS)
    assert found["growth"] == pytest.approx(1.25)
    assert [row["above_idle_bytes"] for row in found["memory"]] == [8_000, 10_000, 240_000]
    assert found["machine"]["processors"]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(memory.table(ROWS))
    text = console.export_text()
    assert "1.25x" in text
    assert "…" not in text


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[dict[str, Any]] = []

    def measured(progress: Any, **sizes: int) -> list[Memory]:
        progress(0, 9, "3 nodes: starting")
        given.append(sizes)
        return ROWS

    monkeypatch.setattr(memory, "memory", measured)
    out = tmp_path / "out.json"
    arguments = ["bench", "memory", "--json", str(out)]
    for more in ([], ["--values", "5000", "--cohort", "4", "--repeats", "1"]):
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.output
        assert "ServerApp" in done.output
    assert given == [{}, {"values": 5000, "nodes": 4, "rounds": 1}]
    assert json.loads(out.read_text())["growth"] == pytest.approx(1.25)


def test_what_a_process_holds() -> None:
    assert 0 < resident() <= resident("VmHWM")
    assert resident(pid=os.getpid()) > 0
    with pytest.raises(ProcessLookupError):
        resident(pid=1 << 29)


def test_the_flower_app_is_written_as_files(tmp_path: Path) -> None:
    synthetic.write_app(tmp_path / "app")
    assert sorted(p.name for p in (tmp_path / "app").iterdir()) == sorted(synthetic.APP)
    assert "dependencies = []" in (tmp_path / "app/pyproject.toml").read_text()


def test_configs_as_flowers_commands_take_them() -> None:
    pairs = deployment.pairs({"flhe-home": "/a b", "partition-id": 0, "timeout": 1.5})
    assert pairs == 'flhe-home="/a b" partition-id=0 timeout=1.5'


def watch_for_seconds(node: deployment._SuperNode, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        node.watch()
        time.sleep(0.01)


def test_a_node_that_ends_is_started_again_a_few_times(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])"]
    children = Children(os.environ, tmp_path / "scratch")
    try:
        node = deployment._SuperNode(command, children, log, tmp_path)
        with pytest.raises(FlheError, match="a flower-supernode exited with 0"):
            watch_for_seconds(node, 30)
    finally:
        children.stop()
    assert len(log.read_text().split()) == deployment.STARTS


# --- the wire of InProcessGrid ---


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


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


# --- the real thing ---


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_a_server_does_not_grow_with_its_nodes() -> None:
    few, many = (memory.server_memory(nodes, 4_000_000) for nodes in (3, 6))
    assert many.above_idle <= 1.3 * few.above_idle
    assert few.models < 10

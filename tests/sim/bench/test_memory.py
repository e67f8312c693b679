"""flhe bench memory: a federation that is what it says, and what is told of its memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity

from flhe.errors import ConfigError, FlheError
from flhe.mods import records
from flhe.strategies.resident import resident
from flhe.training.model import Model
from flhe_app.processes import Children
from flhe_lab.bench import memory, one_process, synthetic
from flhe_lab.bench.memory import Memory
from flhe_lab.crowd import deployment


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


def test_a_federation_in_one_process_adds_what_its_clients_add(tmp_path: Path) -> None:
    found = one_process.federate(5_000, 3, 2, tmp_path)
    assert 10 << 20 < found["idle"] <= found["peak"] + (4 << 20)  # pages are counted in batches
    (path,) = (tmp_path / "node-1").glob("runs/*/model")
    model = Model.from_bytes(path.read_bytes())
    assert model.round == 2
    before = records.to_numpy(synthetic.initial(5_000))["layer-0"]
    mean = float(synthetic.STEP) * (1 + 2 + 3) / 3
    assert np.abs(model.masters["layer-0"] - before - 2 * mean).max() < mean / 1000


def test_a_process_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = memory.process_memory(20_000, rounds=1, timeout=120)
    assert (row.what, row.nodes, row.values, row.rounds) == ("process", 3, 20_000, 1)
    assert 10 << 20 < row.idle_bytes <= row.peak_bytes < 2 << 30
    assert row.seconds > 0
    assert capsys.readouterr().out == ""
    with pytest.raises(FlheError, match=r"took more than 0\.1 s"):
        memory.process_memory(1_000, timeout=0.1)
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


def test_all_of_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "Deployment", FakeDeployment)
    monkeypatch.setattr(
        memory,
        "process_memory",
        lambda values, rounds, step: Memory("process", 3, values, rounds, 1, 2, 0.1),
    )
    seen: list[tuple[int, int, str]] = []
    rows = memory.memory(1_000, 5, 2, progress=lambda *step: seen.append(step))
    sizes = [("server", 3, 1_000), ("server", 5, 1_000), ("process", 3, 10_000)]
    assert [(r.what, r.nodes, r.values) for r in rows] == sizes
    assert rows[0].peak_bytes > 10 << 20  # of this process, as it is seen from outside
    assert rows[0].models == (rows[0].peak_bytes - 1_000) / 4_000
    assert [step[0] for step in seen] == list(range(len(seen)))
    assert seen[0][2] == "3 nodes: starting"


def test_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes in ((0, 20, 2), (1_000, 3, 2), (1_000, 20, 0)):
        with pytest.raises(ConfigError, match="memory needs"):
            memory.memory(*sizes)
    with pytest.raises(ConfigError, match="lower --cohort or --values"):
        memory.check(1000, 10**12)
    monkeypatch.setattr(memory, "find_spec", lambda name: None if name == "psutil" else object())
    with pytest.raises(ConfigError, match=r"\[apps\] extra, missing: psutil"):
        memory.check(3, 1)


def test_what_a_process_holds() -> None:
    assert 0 < resident() <= resident("VmHWM")
    assert resident(pid=os.getpid()) > 0
    with pytest.raises(ProcessLookupError):
        resident(pid=1 << 29)


def test_the_flower_app_and_its_config_as_flower_takes_them(tmp_path: Path) -> None:
    synthetic.write_app(tmp_path / "app")
    assert sorted(p.name for p in (tmp_path / "app").iterdir()) == sorted(synthetic.APP)
    pairs = deployment.pairs({"flhe-home": "/a b", "partition-id": 0, "timeout": 1.5})
    assert pairs == 'flhe-home="/a b" partition-id=0 timeout=1.5'


def watched(node: deployment._SuperNode, deadline: float) -> None:
    while time.monotonic() < deadline:
        node.watch()
        time.sleep(0.01)


def test_a_node_that_ends_is_started_again_a_few_times(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])"]
    children, deadline = Children(os.environ, tmp_path / "scratch"), time.monotonic() + 30
    try:
        node = deployment._SuperNode(command, children, log, tmp_path)
        with pytest.raises(FlheError, match="a flower-supernode exited with 0"):
            watched(node, deadline)
    finally:
        children.stop()
    assert len(log.read_text().split()) == deployment.STARTS


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_a_server_does_not_grow_with_its_nodes() -> None:
    few, many = (memory.server_memory(nodes, 4_000_000) for nodes in (3, 6))
    assert many.above_idle <= 1.3 * few.above_idle
    assert few.models < 10

"""The server app, started as a SuperLink starts it: its run config says where overhead is told."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from flhe.errors import ConfigError
from flhe.strategies import overhead, tensorboard
from flhe.strategies.overhead import PHASES
from flhe.strategies.report import VERSION
from flhe_app import launch
from flhe_app.run_command import How
from flhe_app.settings import Settings
from tests.apps.federation import serve
from tests.strategies.test_report import written

ROUNDS = 2
DOCS = pathlib.Path(__file__).parents[2] / "docs"
SECTION = (DOCS / "how-to" / "watch-costs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[dict[str, Any]], pathlib.Path]:
    """A run's report, and its directory of event files."""
    pytest.importorskip("tensorboardX")
    tmp = tmp_path_factory.mktemp("overhead")
    paths = {"tensorboard": tmp / "board", "report": tmp / "report.jsonl"}
    how: dict[str, Any] = {name: str(path) for name, path in paths.items()}
    settings = Settings(nodes=3, num_rounds=ROUNDS, sealed_model=str(tmp / "m"), **how)
    serve(settings, tmp)
    lines = (tmp / "report.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], tmp / "board"


def test_the_report_says_where_each_round_went(run: Any) -> None:
    events, _ = run
    assert [e["event"] for e in events] == ["start", "joined", *["round"] * ROUNDS, "done"]
    assert events[0]["version"] == VERSION
    for event in events[2:-1]:
        phases = event["phases"]
        names = [phase["name"] for phase in phases]
        assert names == [name for name in PHASES if name in names]
        assert {"train", "encrypt", "upload", "add", "open", "evaluate", "other"} <= set(names)
        assert ("keys" in names) == (event["round"] == 1)
        assert sum(p["seconds"] for p in phases) == pytest.approx(event["wall_s"], abs=1e-6)
        assert sum(p["bytes_up"] for p in phases) == event["bytes_up"] > 0
        assert sum(p["bytes_down"] for p in phases) == event["bytes_down"] > 0
        assert event["server_bytes"] > 1 << 20
        assert event["nodes_bytes"] is None  # no simulation of Flower's
    assert sum(p["bytes_up"] for p in events[-1]["ending"]["phases"]) > 100_000


def test_tensorboard_is_told_the_same(run: Any) -> None:
    events, board = run
    found = {(tag, step): value for tag, step, value in written(board)}
    assert {step for _, step in found} == set(range(1, ROUNDS + 1))
    for event in events[2:-1]:
        step, train = event["round"], event["phases"][0]
        assert found["accuracy", step] == pytest.approx(event["accuracy"])
        tag = f"overhead/{train['name']}/seconds"
        assert found[tag, step] == pytest.approx(train["seconds"], abs=1e-6)


def test_a_missing_package_is_named_before_anything_starts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "NEEDS", "no_such_module")
    with pytest.raises(ConfigError, match=r"pip install 'tensorboardX>="):
        launch.check(Settings(tensorboard=str(tmp_path)), How())


def test_processes_of_nodes_are_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert overhead.nodes_memory() is None
    monkeypatch.setitem(sys.modules, "ray", object())  # type: ignore[arg-type]
    assert overhead.nodes_memory() is None
    with monkeypatch.context() as denied:  # processes may not be listed
        denied.setattr(psutil.Process, "children", Mock(side_effect=psutil.AccessDenied))
        assert overhead.nodes_memory() is None
    actor = subprocess.Popen(
        [overhead.ACTOR, "-c", "held = bytearray(50 << 20); print(flush=True); input()"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert actor.stdout is not None
    actor.stdout.readline()
    most = overhead.nodes_memory()
    actor.communicate(b"\n")
    assert most is not None
    assert 50 << 20 < most < 500 << 20


def test_the_page_names_every_phase_and_field_of_a_round(run: Any) -> None:
    table = SECTION.partition("| phase | is |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", table, re.MULTILINE)) == PHASES
    events, _ = run
    known = set(re.findall(r"`([a-z_]+)`", SECTION))
    assert set(events[2]) - {"event"} <= known
    assert set(events[2]["phases"][0]) <= known
    assert {event["event"] for event in events} <= known

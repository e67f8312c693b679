"""The server app, started as a SuperLink starts it: its run config says where overhead is told."""

from __future__ import annotations

import io
import json
import pathlib
import re
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError
from flhe.strategies import tensorboard
from flhe.strategies.overhead import PHASES
from flhe.strategies.report import VERSION
from flhe_app import launch, node_memory, run_dir
from flhe_app.console import overhead_table
from flhe_app.flower_run import FlowerRun, How
from flhe_app.settings import Settings
from tests.apps.federation import serve
from tests.strategies.test_tensorboard import written

NODES, ROUNDS = 3, 2
PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## What it costs, live\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module", params=["flashe", "plain"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]], pathlib.Path]:
    """A run's scheme, its report, and its directory of event files."""
    pytest.importorskip("tensorboardX")
    scheme, tmp = request.param, tmp_path_factory.mktemp("overhead")
    paths = {"tensorboard": tmp / "board", "report": tmp / "report.jsonl"}
    how: dict[str, Any] = {name: str(path) for name, path in paths.items()}
    settings = Settings(scheme, nodes=NODES, num_rounds=ROUNDS, sealed_model=str(tmp / "m"), **how)
    serve(settings, tmp)
    lines = (tmp / "report.jsonl").read_text().splitlines()
    return scheme, [json.loads(line) for line in lines], tmp / "board"


def test_the_report_says_where_each_round_went(run: Any) -> None:
    scheme, events, _ = run
    assert [e["event"] for e in events] == ["start", "joined", *["round"] * ROUNDS, "done"]
    assert events[0]["version"] == VERSION
    for event in events[2:-1]:
        phases = event["phases"]
        names = [phase["name"] for phase in phases]
        assert names == [name for name in PHASES if name in names]
        assert {"train", "upload", "add", "evaluate", "other"} <= set(names)
        assert {"encrypt", "open"} <= set(names) or scheme == "plain"
        assert ("keys" in names) == (scheme != "plain" and event["round"] == 1)
        assert sum(p["seconds"] for p in phases) == pytest.approx(event["wall_s"], abs=1e-6)
        assert sum(p["bytes_up"] for p in phases) == event["bytes_up"] > 0
        assert sum(p["bytes_down"] for p in phases) == event["bytes_down"] > 0
        assert event["server_bytes"] > 1 << 20
        assert event["nodes_bytes"] is None  # no simulation of Flower's
    ending = events[-1]["ending"]
    assert (ending is None) == (scheme == "plain")
    assert scheme == "plain" or sum(p["bytes_up"] for p in ending["phases"]) > 100_000


def test_tensorboard_is_told_the_same(run: Any) -> None:
    _, events, board = run
    found = {(tag, step): value for tag, step, value in written(board)}
    assert {step for _, step in found} == set(range(1, ROUNDS + 1))
    for event in events[2:-1]:
        step = event["round"]
        assert found["accuracy", step] == pytest.approx(event["accuracy"])
        assert found["loss", step] == pytest.approx(event["loss"])
        assert found["memory/server_bytes", step] == pytest.approx(event["server_bytes"])
        for phase in event["phases"]:
            for name in ("seconds", "bytes_up", "bytes_down"):
                tag = f"overhead/{phase['name']}/{name}"
                assert found[tag, step] == pytest.approx(phase[name], abs=1e-6)


def shown(rounds: list[dict[str, Any]], ending: dict[str, Any] | None) -> str:
    table = overhead_table(rounds, ending)
    assert table is not None
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def phase(name: str, *costs: float | None) -> dict[str, Any]:
    keys = ("seconds", "bytes_up", "bytes_down", "server_bytes")
    return {"name": name, **dict(zip(keys, costs, strict=True))}


def test_the_table_shows_the_first_round_and_the_mean_of_the_others() -> None:
    rounds = [
        {"nodes_bytes": 10, "phases": [phase("keys", 9.0, 6000, 0, 5_000_000)]},
        {"nodes_bytes": 3_000_000, "phases": [phase("train", 1.0, 0, 30_000, 7_000_000)]},
        {"nodes_bytes": None, "phases": [phase("train", 4.0, 0, 0, None)]},
    ]
    ending = {"wall_s": 0.5, "phases": [phase("catch-up", 0.5, 1_000_000, 2_000_000, None)]}
    text = shown(rounds, ending)
    assert re.search(r"^keys +9\.000 +- +2\.00 kB +- +5\.00 MB *$", text, re.MULTILINE)
    assert re.search(r"^train +- +2\.500 +- +10\.00 kB +7\.00 MB *$", text, re.MULTILINE)
    assert text.index("keys") < text.index("train")
    words = " ".join(text.split())
    assert "A process of nodes held 3.00 MB at most." in words
    assert "After the last round: 0.50 s, 1.00 MB up, 2.00 MB down." in words


def test_the_table_fits_a_terminal_of_80_and_is_left_out_where_nothing_is_known() -> None:
    big = [phase(name, 12345.678, 999_999_999_999, 999_999_999_999, 10**12) for name in PHASES]
    text = shown([{"nodes_bytes": 10**12, "phases": big}] * 2, None)
    assert "…" not in text
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in PHASES)
    assert overhead_table([{"round": 1}], None) is None  # reported by an earlier version


def test_a_line_of_the_report_is_passed_on_at_once(tmp_path: pathlib.Path) -> None:
    shown = io.StringIO()
    run = FlowerRun.__new__(FlowerRun)
    run._console = Console(file=shown, width=200)
    mine = tmp_path / "mine.jsonl"
    copy = run._own(mine)
    copy.append('{"event": "start"}')
    copy.append('{"event": "round"}')
    assert mine.read_text() == '{"event": "start"}\n{"event": "round"}\n'
    with pytest.raises(ConfigError, match=r"--report .*cannot be written"):
        run._own(tmp_path / "gone" / "mine.jsonl").append("{}")
    mine.rename(tmp_path / "moved")
    mine.mkdir()  # it can no more be written: said once, and the run goes on
    copy.append("{}")
    copy.append("{}")
    assert shown.getvalue().count(f"--report {mine} cannot be written (Is a directory)") == 1


def test_run_hands_on_where_overhead_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(launch, "run", lambda settings, how: seen.append((settings, how)))
    monkeypatch.setattr(launch, "resume", lambda path, given, how: seen.append((given, how)))
    options = ["--report", "r.jsonl", "--tensorboard", "board"]
    for arguments in (options, [*options, "--resume", str(tmp_path)], []):
        assert CliRunner().invoke(app, ["run", *arguments]).exit_code == 0
    (settings, how), (given, again), (usual, bare) = seen
    assert how.report_path == again.report_path == pathlib.Path("r.jsonl")
    assert (settings.tensorboard, given) == ("board", {"tensorboard": "board"})
    assert (usual.tensorboard, bare.report_path) == ("", None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with run_dir.created(settings) as made:  # Flower's processes run elsewhere
        assert made.settings.tensorboard == str(pathlib.Path("board").absolute())


def test_what_cannot_work_is_refused_before_anything_starts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--report .*name a file in a directory that exists"):
        launch.check(Settings(), How(report_path=tmp_path / "no" / "report"))
    launch.check(Settings(), How(report_path=tmp_path / "report"))
    monkeypatch.setattr(tensorboard, "NEEDS", "no_such_module")
    with pytest.raises(ConfigError, match=r"pip install 'tensorboardX>="):
        launch.check(Settings(tensorboard=str(tmp_path)), How())


def test_processes_of_nodes_are_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert node_memory.nodes_memory() is None
    monkeypatch.setitem(sys.modules, "ray", object())  # type: ignore[arg-type]
    assert node_memory.nodes_memory() is None
    with monkeypatch.context() as denied:  # processes may not be listed
        denied.setattr(psutil.Process, "children", Mock(side_effect=psutil.AccessDenied))
        assert node_memory.nodes_memory() is None
    actor = subprocess.Popen(
        [node_memory.ACTOR, "-c", "held = bytearray(50 << 20); print(flush=True); input()"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert actor.stdout is not None
    actor.stdout.readline()
    most = node_memory.nodes_memory()
    actor.communicate(b"\n")
    assert most is not None
    assert 50 << 20 < most < 500 << 20


def test_the_page_names_every_phase_and_field_of_a_round(run: Any) -> None:
    table = SECTION.partition("| phase | is |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", table, re.MULTILINE)) == PHASES
    _, events, _ = run
    known = set(re.findall(r"`([a-z_]+)`", SECTION))
    assert set(events[2]) - {"event"} <= known
    assert set(events[2]["phases"][0]) <= known
    assert {event["event"] for event in events} <= known

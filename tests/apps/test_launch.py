"""`flhe run`: true exit codes, one clear line, and nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe_app.environment import environment
from flhe_app.flower_run import FlowerRun
from flhe_app.outcome import Outcome, last_exception
from flhe_app.processes import Children, tagged
from tests.patience import PATIENCE_S, until

SLEEPER = [sys.executable, "-c", "import time; time.sleep(3600)"]
ORPHANS = [  # a child in a session of its own, that ignores SIGTERM and has one more
    sys.executable,
    "-c",
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'],"
    " start_new_session=True)\n"
    "print('up', flush=True); time.sleep(3600)",
]


@pytest.fixture
def env(tmp_path: pathlib.Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("FLHE_HOME", "TERM")}
    return {**clean, "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "100"}


def flhe(env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flhe.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """No process of this test may survive it; Ray's rename themselves, so all are compared."""
    before = set(psutil.pids())
    yield
    names = ("flower-super", "flwr", "ray::", "raylet", "gcs_server", "flhe_app.processes")

    def left() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if process.pid not in before and any(name in line for name in names):
                    found.append(line)
        return found

    until(lambda: not left())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--scheme rot13", "scheme 'rot13': there are flashe, sash"),
        ("esafl --keys dealt", "a simulation has none; have nodes make theirs"),
        ("--task alexnet --data-dir /no/such/place", "--data-dir /no/such/place has none"),
        ("--task gru --download", "needs its data set: put *.txt into a directory"),
        ("--device xpu:99", "--device xpu:99: "),
        ("--report /no/such/place/report", "name a file in a directory that exists"),
        ("--output /no/such/place/model", "name a file in a directory that exists"),
        ("--resume /no/such/run", "--resume /no/such/run: holds no run that can be resumed"),
    ],
    ids=str,
)
def test_bad_options_are_one_line_before_anything_starts(
    arguments: str, message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    result = CliRunner().invoke(app, ["run", *arguments.split()])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout
    assert not (tmp_path / "data").exists()


def test_last_exception_of_a_log(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        '  File "server_app.py", line 3, in main\n'
        "flhe.errors.QuorumError: two is too few\n"
        "INFO : that was an Error: not this\n"
    )
    assert last_exception(log) == "QuorumError: two is too few"
    assert last_exception(log, log.stat().st_size) == ""


def test_what_the_server_wrote_at_its_end_is_trusted(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model.flhe"
    model.touch()
    failed: list[str] = []
    run: Any = SimpleNamespace(
        _outcome=Outcome([{}, {}], {"done": {}}),
        _settings=SimpleNamespace(total_rounds=2, sealed_model=str(model)),
        _dir=SimpleNamespace(resumed=False),
        _log=tmp_path / "log",
        _log_start=0,
        _tick=lambda: None,
        _fail=failed.append,
    )
    run._complete = lambda: FlowerRun._complete(run)
    stream: Any = SimpleNamespace(poll=lambda: 0)
    run._log.touch()
    FlowerRun._settle(run, stream)
    assert failed == []
    model.unlink()
    FlowerRun._settle(run, stream)
    assert failed == ["the simulation's process ended after 2 of 2 rounds"]


def test_environment_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv("NO_PROXY", "example.org")
    env = environment(tmp_path / "nodes", tmp_path / "scratch")
    assert "RAY_ADDRESS" not in env
    assert env["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert env["FLWR_HOME"] == str(tmp_path / "scratch")
    assert env["FLHE_HOME"] == str(tmp_path / "nodes")
    assert env["PATH"].split(os.pathsep)[0] == str(pathlib.Path(sys.executable).parent)


def test_children_are_stopped_with_theirs_even_when_orphaned(tmp_path: pathlib.Path) -> None:
    """The watchdog keeps a lock until that is done."""
    log, mine, other = (tmp_path / "log", *((tmp_path / "lock").open("w") for _ in range(2)))
    fcntl.flock(mine, fcntl.LOCK_EX)
    (tmp_path / "scratch").mkdir()
    children = Children(os.environ, tmp_path / "scratch", hold=[mine.fileno()])
    mine.close()
    process = children.start(ORPHANS, log)
    until(lambda: log.exists() and b"up" in log.read_bytes())
    process.kill()
    process.wait()
    assert tagged(children.tag)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    children.stop()
    assert not tagged(children.tag)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.close()


def test_watchdog_cleans_up_after_a_killed_parent(tmp_path: pathlib.Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, pathlib, sys, time\n"
            "from flhe_app.processes import Children\n"
            f"children = Children(os.environ, pathlib.Path({str(scratch)!r}))\n"
            f"children.start({SLEEPER!r}, pathlib.Path(os.devnull))\n"
            "print(children.tag, flush=True); time.sleep(3600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    tag = parent.stdout.readline().strip()
    assert len(tagged(tag)) == 1
    parent.kill()
    parent.communicate()
    until(lambda: not tagged(tag) and not scratch.exists())


def test_stopped_while_it_starts(env: dict[str, str], tmp_path: pathlib.Path) -> None:
    with nothing_left():
        process = flhe(env, "run", "--scheme", "plain")
        assert process.stderr is not None
        assert process.stderr.readline() == "starting Flower\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert err == "flhe: stopped by SIGTERM; everything it started is stopped too\n"
    assert not list((tmp_path / "data/flhe/runs").iterdir())


def test_a_killed_superlink_is_noticed(env: dict[str, str]) -> None:
    with nothing_left():
        process = flhe(env, "run", "--scheme", "plain")
        killed = False
        while not killed and process.poll() is None:
            for child in psutil.Process(process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if any("flower-superlink" in part for part in child.cmdline()[:2]):
                        child.kill()
                        killed = True
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "flower-superlink was killed by signal 9" in err.splitlines()[-1]


def test_a_plain_run_from_end_to_end(env: dict[str, str], tmp_path: pathlib.Path) -> None:
    """Of one node: each further one would be one more process that imports torch."""
    model, report = (tmp_path / name for name in ("m.npz", "report.jsonl"))
    with nothing_left():
        process = flhe(
            env,
            *("run", "--scheme", "plain", "--nodes", "1", "--rounds", "1", "--local-epochs", "1"),
            *("--json", "--output", str(model), "--report", str(report)),
        )
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "round 1/1: accuracy" in err
    content = json.loads(out)
    assert " ".join(content) == (
        "scheme task nodes rounds final_accuracy sealed_model warning ending"
    )
    assert " ".join(content["rounds"][0]) == (
        "round accuracy loss bytes_up bytes_down crypto_s round_s survivors wall_s "
        "server_bytes nodes_bytes epsilon delta phases kind"
    )
    events = [json.loads(line) for line in report.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "joined", "round", "done"]
    assert events[2] == {"event": "round", **content["rounds"][0]}
    assert events[2]["nodes_bytes"] > 50 << 20  # a process that has imported torch
    assert content["rounds"][0]["survivors"] == 1
    assert content["final_accuracy"] == content["rounds"][0]["accuracy"]
    assert content["sealed_model"] == str(model)
    assert content["warning"] is None
    assert model.exists()
    assert list((tmp_path / "data/flhe/runs").glob("*/run.log"))


def kill_simulation(launcher: int) -> None:
    """Kill the process that holds the ServerApp and all nodes of a run."""
    killed = 0
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(pathlib.Path(part).name == "flwr-simulation" for part in process.cmdline()[:2]):
                process.kill()
                killed += 1
    assert killed


@pytest.mark.sweep
def test_a_run_goes_on_after_its_simulation_was_killed(
    env: dict[str, str], tmp_path: pathlib.Path
) -> None:
    process = flhe(env, "run", "--nodes", "3", "--rounds", "3", "--local-epochs", "1")
    assert process.stderr is not None
    first = next((line for line in process.stderr if line.startswith("round 1/3")), "")
    assert first, process.communicate()[1]
    kill_simulation(process.pid)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    # A round takes less time than it may take to find the process: one more can be done by then.
    ended = re.search(r"the simulation's process ended after ([12]) of 3 rounds", err)
    assert ended, err
    hint = re.search(r"; resume it: (.*)\n", err)
    assert hint
    directory = shlex.split(hint[1])[-1]

    model = tmp_path / "model.npz"
    process = flhe(env, "run", "--resume", directory, "--json")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    lines = err.splitlines()
    assert (lines[0], lines[int(ended[1])]) == (first.rstrip("\n"), "starting Flower")
    rounds = json.loads(out)["rounds"]
    assert [report["round"] for report in rounds] == [1, 2, 3]
    assert all(report["survivors"] == 3 for report in rounds)

    sealed, keys = f"{directory}/model.flhe", f"{directory}/nodes"
    process = flhe(env, "open", sealed, "--key", keys, "--output", str(model))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("round 3\n")
    assert model.exists()

    process = flhe(env, "run", "--resume", directory)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "the run is finished, with 3 rounds" in err
    assert err.count("\n") == 1

"""`flhe run --resume`, with a real simulation that is killed between two rounds."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import psutil
import pytest

ROUNDS = 3


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


def kill_simulation(launcher: int) -> None:
    """Kill the process that holds the ServerApp and all nodes of a run."""
    killed = 0
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(pathlib.Path(part).name == "flwr-simulation" for part in process.cmdline()[:2]):
                process.kill()
                killed += 1
    assert killed


def test_a_run_goes_on_after_its_simulation_was_killed(
    env: dict[str, str], tmp_path: pathlib.Path
) -> None:
    process = flhe(
        env, *("run", "--nodes", "3", "--rounds", str(ROUNDS), "--local-epochs", "1", "--seed", "3")
    )
    assert process.stdout is not None
    first = next((line for line in process.stdout if line.startswith("round 1/3")), "")
    assert first, process.communicate()[1]
    kill_simulation(process.pid)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    # A round takes less time than it may take to find the process: one more can be done by then.
    ended = re.search(r"the simulation's process ended after ([12]) of 3 rounds", err)
    assert ended, err
    assert err.count("\n") == 1
    hint = re.search(r"; resume it: (.*)\n", err)
    assert hint
    directory = shlex.split(hint[1])[-1]

    results, model = tmp_path / "out.json", tmp_path / "model.npz"
    process = flhe(env, "run", "--resume", directory, "--json", str(results))
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert (lines[0], lines[int(ended[1])]) == (first.rstrip("\n"), "starting Flower")
    rounds = json.loads(results.read_text())["rounds"]
    assert [report["round"] for report in rounds] == [1, 2, 3]
    assert all(report["survivors"] == 3 for report in rounds)

    sealed, keys = f"{directory}/model.flhe", f"{directory}/nodes"
    process = flhe(env, "open", sealed, "--key", keys, "--output", str(model))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("round 3\n")
    assert model.exists()

    process = flhe(env, "run", "--resume", directory)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the run is finished, with 3 rounds" in err
    assert err.count("\n") == 1

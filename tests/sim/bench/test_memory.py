"""`flhe bench --memory`: each message in a process of its own, and what it held there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import FlheError
from flhe_lab.bench import memory
from flhe_lab.bench.apart import Apart, Peaks
from flhe_lab.bench.synthetic import STEP, initial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own figures")


def test_a_peak_is_of_its_phase() -> None:
    peaks = Peaks()
    peaks.end("before")
    np.ones(20 << 20, np.uint8)
    peaks.end("large")
    peaks.end("small")
    _, large, small = peaks.found
    assert large["peak_bytes"] - small["peak_bytes"] > 15 << 20
    assert min(large["seconds"], small["seconds"]) > 0


def test_what_an_app_holds_is_not_ours() -> None:
    def ended(node: int, stage: str, phase: str, seconds: float, peak: int) -> dict[str, Any]:
        known = {"node": node, "stage": stage, "phase": phase}
        return {**known, "seconds": seconds, "peak_bytes": peak}

    rows = memory._phases(
        [
            ended(1, "round", "start", 9.0, 9),
            ended(1, "round", "encode", 1.0, 500),
            ended(2, "round", "encode", 3.0, 700),
            ended(1, "sync", "encrypt", 2.0, 300),
        ],
        100,
    )
    assert rows == [
        memory.Held("round: encode", 2.0, 600),
        memory.Held("sync: encrypt", 2.0, 300),
    ]


def test_a_wrong_model_is_an_error() -> None:
    start = initial(100)
    mean = memory.ROUNDS * STEP * 2
    after = {name: array.numpy() + mean for name, array in start.items()}
    memory._check(start, after)
    after["layer-0"][7] += STEP
    with pytest.raises(FlheError, match="not what the nodes have made"):
        memory._check(start, after)


def test_a_process_that_fails_is_not_waited_for(tmp_path: Path) -> None:
    with Apart(3, tmp_path) as grid:
        grid.contexts[100].node_config["flhe-trust"] = object()  # no message can hold it
        with pytest.raises(TypeError, match="JSON"):
            memory.HEStrategy(min_train_nodes=3, min_available_nodes=3).start(
                grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), 1
            )


@pytest.mark.sweep
def test_a_whole_measurement() -> None:
    result = CliRunner().invoke(app, ["bench", "sash", "--memory", "--values", "2000", "--json"])
    assert result.exit_code == 0, result.output
    [found] = json.loads(result.stdout)
    rows = {row["phase"]: row for row in found["rows"]}
    assert {"round: open", "round: encrypt", "unmask: encrypt", memory.SERVER} <= rows.keys()
    assert all(row["peak_bytes"] > 10 << 20 and row["seconds"] >= 0 for row in rows.values())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--memory", "--round"), "choose one"),
        (("--memory", "--repeats", "3"), "means nothing"),
        (("bfg", "--memory"), "choose from"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], why: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code != 0
    assert why in result.output

"""A small crowd: exact sums, its own counting, and that a wrong model is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flhe.errors import FlheError
from flhe.keys.masking import Circle
from flhe.sim import crowd
from flhe.sim.bench.synthetic import STEP


def test_a_small_crowd(tmp_path: Path) -> None:
    done: list[int] = []
    found = crowd.federate(7, 5000, 3, 2, tmp_path, done.append)
    assert done == [1, 2, 3]
    assert len(found.survivors) == 3
    assert all(5 <= count <= 7 for count in found.survivors)
    assert found.error < 1e-5
    assert found.upload_bytes == pytest.approx(4 * 5000, rel=0.01)
    # Shares of 2048 elements for six others, theirs for this node, and little else.
    box = Circle(1, 1, bytes(32), tuple(bytes([i]) * 32 for i in range(7)), 2, 2048).box_bytes
    assert 2 * 4 * box < found.masking_bytes < 2 * 7 * box + 5000
    assert found.peak_bytes > 0
    assert crowd.table(found).row_count == 8


def test_a_wrong_model_is_noticed() -> None:
    from flwr.app import Array, ArrayRecord

    start = ArrayRecord({"layer-0": Array(np.zeros(10, np.float32))})
    with pytest.raises(FlheError, match="not the survivors'"):
        crowd.error_of(start, start, 5, 1, 0)


def test_one_missing_client_of_a_thousand_is_noticed() -> None:
    """Though it is less than what a single value may be off by."""
    from flwr.app import Array, ArrayRecord

    rng = np.random.default_rng(3)  # test data
    start = rng.standard_normal(4000, np.float32)
    steps = float(STEP) * np.arange(1, 1001)
    for missing, wrong in ((None, False), (0, True), (999, True), (700, True)):
        there = steps if missing is None else np.delete(steps, missing)
        model = (start + there.mean()).astype(np.float32)
        records = [ArrayRecord({"layer-0": Array(a)}) for a in (model, start)]
        if not wrong:
            assert crowd.error_of(*records, 1000, 1, 0) < 1e-6
            continue
        with pytest.raises(FlheError, match="on average"):
            crowd.error_of(*records, 1000, 1, 0)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(crowd.main)
    file = tmp_path / "crowd.json"
    arguments = ["--clients", "4", "--values", "1000", "--rounds", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "masking-key agreement" in result.output
    assert json.loads(file.read_text())["crowd"]["clients"] == 4

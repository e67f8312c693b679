"""SASH and SASH+ among the contenders: their sums are checked, and they are what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from flhe.errors import FlheError
from flhe.sim import against_flower
from flhe.sim.aggregation_contenders import Setting
from flhe.sim.sash_aggregation import ALL, SASH, SASH_PLUS, SashMembers, SashNeighbours


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["all", "neighbours"])
def test_sums_are_checked(kind: str, dropout: float) -> None:
    setting = Setting(12, 3000, dropout)
    made = SashMembers(setting) if kind == "all" else SashNeighbours(setting, 10)
    assert made.client() > 0
    assert made.server() > 0
    assert made.server() > 0  # once more, on the same answers
    made._expected[7] += 1
    with pytest.raises(FlheError, match="the sum is not the sum"):
        made.server()


def test_a_client_opens_what_all_others_sent() -> None:
    made = SashMembers(Setting(9, 100, 0.2))
    box = made.circle.box_bytes
    assert [len(b) for b in made._boxes] == [0] + [box] * (len(made.setting.senders) - 1)
    made._boxes[3] = bytes(box)
    with pytest.raises(FlheError, match="do not open"):
        made.client()


def test_updates_are_cut_to_the_bits_that_there_are() -> None:
    made = SashMembers(Setting(300, 50))
    assert made.scheme.bits < 16
    assert int(np.abs(made._update(5)).max()) <= made.scheme.space.bound


def test_who_takes_part() -> None:
    assert [maker.name for maker in ALL[:2]] == ["SASH", "SASH+"]
    assert SASH.make(Setting(5, 10)) is not None
    assert SASH_PLUS.make(Setting(50, 10)) is None  # everybody would be a neighbour


def test_beside_flower(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(against_flower.main)
    file = tmp_path / "found.json"
    result = CliRunner().invoke(app, ["--quick", "--values", "500", "--json", str(file)])
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == ["SASH", "Flower SecAgg+, all others"] * 3
    assert [row["server_s"] is None for row in rows] == [False] * 4 + [False, True]
    assert rows[1]["projected"]
    assert not rows[0]["projected"]
    assert "a third" not in result.output  # a table, no prose
    assert result.output.count("x") >= 5

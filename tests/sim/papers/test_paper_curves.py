"""Curves of the papers' workloads: what runs, on what data, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

import typer
from typer.testing import CliRunner

from flhe.apps.tasks.base import Data
from flhe.apps.tasks.workloads import WORKLOADS, Workload, generated
from flhe.errors import ConfigError
from flhe.sim import curves, paper_curves
from flhe.sim.curves import PLAIN
from flhe.sim.papers.learning import SERIES, Arguments, Curve, Setting, preset_name, strategy
from flhe.sim.papers.curves import COMPARISONS, compare, learned
from flhe.strategies.report import RoundReport


def test_every_workload_has_the_schemes_of_its_papers() -> None:
    assert set(COMPARISONS) == {"fcn", "alexnet", "lstm", "resnet20", "gru", "cnn"}
    for name, comparison in COMPARISONS.items():
        presets = [preset_name(arguments) for _, arguments in comparison.runs]
        if name in ("fcn", "alexnet", "lstm"):
            assert presets[:2] == ["batchcrypt_fedavg", "esafl_fedavg"]
        else:
            assert presets[:2] == ["flashe_fedavg", "flashe_fedavg"]
            assert comparison.runs[1][1]["top_k"] == 0.1
        assert ("sash_fedavg" in presets) == (name in ("cnn", "resnet20", "lstm"))
        for _, arguments in comparison.runs:
            terms = strategy(comparison.setting, 100, arguments).terms
            assert terms.bits == 16


def test_digits_stand_in_only_where_there_are_no_images(tmp_path: Path) -> None:
    assert learned("fcn", "").name == learned("fcn", str(tmp_path)).name == "fcn-digits"
    assert learned("cnn", str(tmp_path)).name == "cnn-digits"
    half = {"x": np.zeros((2, 28, 28), np.uint8), "y": np.arange(2)}
    both = {f"{key}_{part}": half[key] for key in "xy" for part in ("train", "test")}
    np.savez(tmp_path / "femnist.npz", **both)
    assert learned("cnn", str(tmp_path)).name == "cnn"
    for name in ("alexnet", "lstm", "resnet20", "gru"):
        assert learned(name, str(tmp_path)).name == name


def test_a_comparison_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with real federations, of a round each on little data."""
    setting = Setting(3, 3, images=30, test_images=30, optimizer="adam", learning_rate=0.01)
    small = paper_curves.Comparison("FCN", setting, (paper_curves.ESAFL, paper_curves.SASH))
    monkeypatch.setitem(COMPARISONS, "fcn", small)
    options = [str(tmp_path), "--only", "fcn", "--rounds", "1", "--workers", "2"]
    app = typer.Typer()
    app.command()(paper_curves.command)
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert "ESAFL" in done.output
    assert (tmp_path / "curves-fcn.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "curves-fcn.json").read_text())
    assert told["task"] == "fcn-digits"
    assert told["title"] == ("FCN (0.10M parameters) on handwritten digits, enlarged, 3 clients")
    assert [curve["strategy"] for curve in told["curves"]] == [
        "FedAvg",
        "esafl_fedavg",
        "sash_fedavg",
    ]
    assert told["curves"][0]["largest_difference"] == {"accuracy": 0.0, "loss": 0.0}
    assert told["curves"][1]["largest_difference"]["loss"] < 0.01
    assert len(told["curves"][1]["loss"]) == 1
    wrong = CliRunner().invoke(app, [str(tmp_path), "--only", "vgg"])
    assert wrong.exit_code == 1
    assert "--only vgg: use one of fcn, alexnet" in wrong.output


def test_fewer_rounds_shorten_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any, int]] = []

    def invented(
        name: str,
        _task: Workload,
        _data: Data,
        setting: Setting,
        arguments: Arguments | None,
        **_: Any,
    ) -> Curve:
        rounds = curves.rounds_of(setting, arguments)
        asked.append((name, arguments, rounds))
        report = RoundReport(1, 0.5, 1.0, 10**6, 10**6, 0.0, 0.5, 3)
        series = {key: [getattr(report, key)] * rounds for key in SERIES}
        return Curve(name, None if arguments is None else dict(arguments), series)

    class Known:
        def load(self, *_: Any, **__: Any) -> Data:
            return generated(WORKLOADS["lstm"], 4, 0)

    monkeypatch.setattr(curves, "learn", invented)
    monkeypatch.setattr(type(WORKLOADS["lstm"]), "load", Known.load)
    compare(tmp_path, "lstm")
    assert [(name, rounds) for name, _, rounds in asked] == [
        (PLAIN, 20),
        ("BatchCrypt, 2048-bit key", 8),
        ("ESAFL", 20),
        ("SASH", 20),
    ]
    asked.clear()
    compare(tmp_path, "lstm", rounds=4)
    assert [rounds for *_, rounds in asked] == [4] * 4
    with pytest.raises(ConfigError, match="'vgg' is unknown; use one of fcn"):
        compare(tmp_path, "vgg")

"""Curves of the papers' workloads: what runs, on what data, and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data
from flhe_app.tasks.workloads import WORKLOADS, generated
from flhe_lab.papers import curves
from flhe_lab.papers.curves import COMPARISONS, PLAIN, compare, learned
from flhe_lab.papers.learning import Setting, preset_name, strategy


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


def test_a_comparison_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real federations, of a round each on little data."""
    setting = Setting(3, 3, images=30, test_images=30, optimizer="adam", learning_rate=0.01)
    small = curves.Comparison("FCN", setting, (curves.ESAFL, curves.SASH))
    monkeypatch.setitem(COMPARISONS, "fcn", small)
    heard: list[tuple[int, int, str]] = []
    plain, *ours = compare("fcn", rounds=1, workers=2, progress=lambda *at: heard.append(at))
    assert [at[:2] for at in heard] == [(1, 3), (2, 3), (3, 3)]
    assert heard[0][2] == f"{PLAIN}: accuracy {plain.series['accuracy'][0]:.4f}"
    assert [curve.name for curve in ours] == ["ESAFL", "SASH"]
    assert all(curve.gap(plain, "loss") < 0.01 and curve.rounds == 1 for curve in ours)


def test_fewer_rounds_shorten_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def invented(name: str, _task: Any, _data: Any, setting: Setting, how: Any, **_: Any) -> None:
        asked.append((name, curves.rounds_of(setting, how)))

    def load(*_: Any, **__: Any) -> Data:
        return generated(WORKLOADS["lstm"], 4, 0)

    monkeypatch.setattr(curves, "learn", invented)
    monkeypatch.setattr(type(WORKLOADS["lstm"]), "load", load)
    compare("lstm")
    shorter = ("BatchCrypt, 2048-bit key", 8)
    assert asked == [(PLAIN, 20), shorter, ("ESAFL", 20), ("SASH", 20)]
    asked.clear()
    compare("lstm", rounds=4)
    assert [rounds for _, rounds in asked] == [4] * 4
    with pytest.raises(ConfigError, match="'vgg' is unknown; use one of fcn"):
        compare("vgg")


def test_arguments_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(curves, "learn", lambda name, *_, **__: asked.append(name))
    for wrong, says in (
        ({"top_q": 0.1}, "flashe_fedavg with top_q: .*top_q"),
        ({"bits": 99}, "99"),
    ):
        told = curves.Comparison("FCN", Setting(3, 2, images=30), (("wrong", wrong),))
        monkeypatch.setitem(COMPARISONS, "fcn", told)
        with pytest.raises(ConfigError, match=says):
            compare("fcn")
    assert asked == []

"""Training seconds and learning curves: what is asked for where, and what is said of curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flhe_lab.papers import curves as paper_curves
from flhe_lab.papers.learning import SERIES
from flhe_lab.tables import learned
from flhe_lab.tables.section import Plan

FULL = Plan(quick=False)


@pytest.fixture
def everything(tmp_path: Path) -> Plan:
    """Files of all data sets that there is no stand-in for, unread."""
    for name in ("cifar10.npz", "tinyshakespeare.txt"):
        (tmp_path / name).touch()
    return Plan(quick=False, data_dir=str(tmp_path))


def curve(name: str, accuracy: list[float]) -> dict[str, Any]:
    series = {key: [0.0] * len(accuracy) for key in SERIES}
    return {"name": name, "arguments": None, **series, "accuracy": accuracy}


def test_models_without_data_are_left_out(everything: Plan) -> None:
    asked = [step.key.rpartition("-")[0] for step in learned.SECTIONS[0].steps(everything)]
    with_digits = {"fcn": "fcn-digits", "cnn": "cnn-digits"}
    assert asked == [f"curves-{with_digits.get(model, model)}" for model in learned.NAMES]
    without = [step.key.rpartition("-")[0] for step in learned.SECTIONS[0].steps(FULL)]
    assert without == ["curves-fcn-digits", "curves-cnn-digits"]


def test_other_settings_are_other_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    before = learned.curves_step("fcn", FULL).key
    told = paper_curves.COMPARISONS["fcn"]
    other = replace(told, setting=replace(told.setting, rounds=told.setting.rounds + 1))
    monkeypatch.setitem(paper_curves.COMPARISONS, "fcn", other)
    assert learned.curves_step("fcn", FULL).key != before


def test_a_figure_has_every_round_of_every_curve_and_says_how_far_they_lie_apart(
    everything: Plan,
) -> None:
    plain, ours = [0.1, 0.4, 0.6], [0.1, 0.5]
    data = {"task": "digits", "curves": [curve("plain FedAvg", plain), curve("FLASHE", ours)]}
    found = {step.key: data for step in learned.SECTIONS[0].steps(everything)}
    results = learned.SECTIONS[0].report(everything, found)
    assert [result.name for result in results] == [f"curves-{model}" for model in learned.NAMES]
    accuracies = [e for e in results[0].entries if e.what == "accuracy"]
    assert [(e.x, e.number.value) for e in accuracies if e.who == "FLASHE"] == [(1, 0.1), (2, 0.5)]
    assert len(accuracies) == 5
    assert "FLASHE 0.100 in 2 rounds, +0.0500 over the last" in results[0].notes[1]


@pytest.mark.parametrize("model", ["fcn", "gru"])
def test_a_batch_is_trained_of_the_size_that_is_told(model: str) -> None:
    plan = Plan(quick=True)
    step = learned.training_step(model, plan)
    found = step.work(lambda _what: None)
    assert found["batch"] == learned.BATCH[model]
    assert round(found["parameters"], -4) == round(learned.VALUES[model], -4)
    assert learned.batch_s(model, {step.key: found}, plan).value == found["seconds_per_batch"] > 0

"""Federations of any scheme that learn: on the same batches, and to the same models as plain ones."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

from torch import nn

from flhe.errors import ConfigError, FlheError
from flhe.strategies.report import RoundReport
from flhe_app.tasks import task_named
from flhe_app.tasks.base import Data
from flhe_app.tasks.workloads import Workload
from flhe_lab.papers import curves
from flhe_lab.papers.curves import (
    COMPARISONS,
    PLAIN,
    Curve,
    Run,
    Setting,
    compare,
    learn,
    parts_of,
)
from flhe_lab.tables import evaluation as tables
from flhe_lab.tables.table import Plan

SMALL = Setting(3, 2, 20, 0.05, "sgd", images=40, test_images=20)
DIGITS = task_named("digits")


def tiny() -> Workload:
    """A task whose rounds take no time: pixels to classes."""
    build = partial(nn.Sequential, nn.Flatten())
    return Workload("tiny", lambda: build(nn.Linear(64, 10)), 0, DIGITS.source)


@pytest.fixture(scope="module")
def data() -> Data:
    return tiny().load("")


@pytest.fixture(scope="module")
def plain(data: Data) -> Curve:
    return learn(PLAIN, tiny(), data, SMALL)


@pytest.mark.parametrize(
    ("scheme", "options", "rounds"),
    [
        ("Flashe", {}, 0),
        ("Sash", {}, 0),
        ("BatchCrypt", {"key_bits": 2048, "clip": 1.0}, 0),
        ("Esafl", {}, 1),
        ("FedmlHe", {}, 0),
    ],
)
def test_any_scheme_learns_what_plain_clients_learn(
    scheme: str, options: dict[str, Any], rounds: int, data: Data, plain: Curve
) -> None:
    bits = {} if scheme == "Sash" else {"bits": 20}
    run = Run("ours", f"{scheme}FedAvg", {**options, **bits}, rounds)
    heard: list[RoundReport] = []
    curve = learn(run, tiny(), data, SMALL, heard.append)
    assert len(curve.accuracy) == len(heard) == (rounds or 2)
    assert curve.loss == pytest.approx(plain.loss[: len(heard)], abs=2e-3)
    assert curve.gap(plain) <= 2 / 60  # a test image or two of sixty
    assert all(report.crypto_s > 0 for report in heard)


def test_a_client_holds_no_more_images_than_it_should(data: Data) -> None:
    for setting, most in ((SMALL, 40), (replace(SMALL, images=0), 479)):
        parts = parts_of(data, setting)
        assert [len(part.train.labels) for part in parts] == [most] * 3
        assert [len(part.test.labels) for part in parts] == [20] * 3
    with pytest.raises(ConfigError, match="share is 479;"):
        parts_of(data, replace(SMALL, images=480))
    with pytest.raises(ConfigError, match="test_images=121: a client's share is 120"):
        parts_of(data, replace(SMALL, test_images=121))


def test_a_round_without_all_clients_is_no_curve(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_run: Run, setting: Setting, _most: int, note: Any) -> Any:
        report = RoundReport(1, 0.5, 1.0, 1, 1, 0.0, 0.1, setting.clients - 1)
        return SimpleNamespace(start=lambda **_: note(report))

    monkeypatch.setattr(Run, "strategy", lost)
    with pytest.raises(FlheError, match="x, round 1: 2 of 3 clients"):
        learn(Run("x"), tiny(), data, SMALL)


def test_a_curve_settles_over_its_last_rounds() -> None:
    curve = Curve("x", [r / 20 for r in range(1, 13)], [])
    assert curve.settled_after(12) == pytest.approx(sum(range(3, 13)) / 200)
    assert curve.settled_after(1) == 1 / 20


def test_options_that_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Run("wrong", "EsaflFedAvg", {"top_k": 0.1})
    monkeypatch.setitem(COMPARISONS, "fcn", curves.Comparison(SMALL, (wrong,)))
    monkeypatch.setattr(curves, "learn", lambda *_: pytest.fail("it runs"))
    with pytest.raises(ConfigError, match="sparse updates with ESAFL"):
        compare("fcn")


# --- the papers' workloads ---


def test_a_comparison_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real federations, of a round each on little data."""
    setting = replace(SMALL, rounds=3, images=30, test_images=30)
    small = curves.Comparison(setting, (curves.ESAFL, curves.SASH))
    monkeypatch.setitem(COMPARISONS, "fcn", small)
    heard: list[tuple[int, int, str]] = []
    plain, *ours = compare("fcn", rounds=1, progress=lambda *at: heard.append(at))
    assert [at[:2] for at in heard] == [(1, 3), (2, 3), (3, 3)]
    assert heard[0][2] == f"{PLAIN.name}: accuracy {plain.accuracy[0]:.4f}"
    assert [curve.name for curve in ours] == ["ESAFL", "SASH"]
    for curve in ours:
        assert curve.loss == pytest.approx(plain.loss, abs=0.01), curve.name


def test_models_without_data_are_left_out_and_curves_say_how_far_apart_they_lie() -> None:
    (section,) = tables.SECTIONS
    names = [step.key.rpartition("-")[0] for step in section.steps(Plan(quick=False))]
    assert names == ["curves-fcn-digits", "curves-cnn-digits"]
    accuracies = {"plain": [0.1, 0.4, 0.6], "FLASHE": [0.1, 0.5]}
    found = [asdict(Curve(name, each, each)) for name, each in accuracies.items()]
    data = {step.key: {"task": "digits", "curves": found} for step in section.steps(Plan(True))}
    (result,) = section.report(Plan(quick=True), data)
    lines = [(e.x, e.number.value) for e in result.entries if e.what == "accuracy"]
    assert lines == [(1, 0.1), (2, 0.4), (3, 0.6), (1, 0.1), (2, 0.5)]
    assert "FLASHE 0.100 in 2 rounds, +0.0500 over the last" in result.notes[1]

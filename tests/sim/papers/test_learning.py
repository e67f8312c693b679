"""Federations of any scheme that learn: on the same batches, and to the same models as plain ones."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

import torch
from torch import nn

from flhe.errors import ConfigError, FlheError
from flhe.strategies.report import RoundReport
from flhe_app.tasks import base, task_named
from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.workloads import WORKLOADS, Workload, generated
from flhe_lab.papers import curves, learners, learning
from flhe_lab.papers.curves import COMPARISONS, PLAIN, compare
from flhe_lab.papers.learning import SERIES, Curve, Setting, learn, strategy
from flhe_lab.tables import learned as tables
from flhe_lab.tables.section import Plan

SMALL = Setting(3, 2, images=40, batch_size=20, learning_rate=0.05, test_images=20)
DIGITS = task_named("digits")


def tiny(*, norm: bool = False) -> Workload:
    """A task whose rounds take no time: pixels to classes, by way of batch norm where asked."""

    def build() -> nn.Module:
        between = (nn.BatchNorm1d(64),) if norm else ()
        return nn.Sequential(nn.Flatten(), *between, nn.Linear(64, 10))

    return Workload("tiny", build, 0, DIGITS.source)


@pytest.fixture(scope="module")
def data() -> Data:
    return tiny().load("", download=False)


@pytest.fixture(scope="module")
def plain(data: Data) -> Curve:
    return learn("plain", tiny(), data, SMALL, None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bits": 20},
        {"scheme": "sash"},
        {"scheme": "batchcrypt", "key_bits": 2048, "bits": 20, "clip": 1.0},
        {"scheme": "esafl", "bits": 20, "rounds": 1},
        {"scheme": "fedml-he", "bits": 20},
    ],
    ids=str,
)
def test_any_scheme_learns_what_plain_clients_learn(
    arguments: dict[str, Any], data: Data, plain: Curve
) -> None:
    heard: list[RoundReport] = []
    curve = learn("ours", tiny(), data, SMALL, arguments, workers=2, on_round=heard.append)
    assert curve.rounds == len(heard) == arguments.get("rounds", 2)
    assert curve.gap(plain, "loss") < 2e-3
    assert curve.gap(plain) <= 2 / 60  # a test image or two of sixty
    assert min(curve.series["crypto_s"]) > 0


def test_batch_norm_travels(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counter of batches exactly, as an integer; its means and variances as weights do."""
    states: list[dict[str, Any]] = []
    real = base.evaluate

    def spy(model: nn.Module, examples: Examples, **how: Any) -> Any:
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return real(model, examples, **how)

    monkeypatch.setattr(base, "evaluate", spy)
    for how in (None, {"bits": 20}):
        learn("norm", tiny(norm=True), data, SMALL, how)
    assert len(states) == 2 * 2 * 3  # federations, rounds, clients
    for at, (theirs, mine) in enumerate(zip(states[:6], states[6:], strict=True)):
        counter = mine["1.num_batches_tracked"]
        assert counter.dtype == torch.int64
        assert int(counter) == int(theirs["1.num_batches_tracked"]) == 2 * (1 + at // 3)
        for name in ("1.running_mean", "1.running_var", "1.weight", "2.weight"):
            assert torch.allclose(mine[name], theirs[name], atol=1e-3)
        assert float((mine["1.running_var"] - 1).abs().max()) > 0.1  # it has moved


def test_a_client_holds_no_more_images_than_it_should(data: Data) -> None:
    whole, pieces = replace(SMALL, images=0), replace(SMALL, images=0, split="pieces")
    for setting, most in ((SMALL, 40), (whole, 479), (pieces, 479)):
        parts = learners.parts_of(data, setting)
        assert [len(part.train.labels) for part in parts] == [most] * 3
        assert [len(part.test.labels) for part in parts] == [20] * 3
    with pytest.raises(ConfigError, match="share is 479 training images"):
        learners.parts_of(data, replace(SMALL, images=480))
    with pytest.raises(ConfigError, match="test_images=121: a client's share is 120 test images"):
        learners.parts_of(data, replace(SMALL, test_images=121))


def test_a_round_without_all_clients_is_no_curve(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(setting: Setting, _most: int, _how: Any, note: Any) -> Any:
        report = RoundReport(1, 0.5, 1.0, 1, 1, 0.0, 0.1, setting.clients - 1)
        return SimpleNamespace(start=lambda **_: note(report))

    monkeypatch.setattr(learning, "strategy", lost)
    with pytest.raises(FlheError, match="x, round 1: 2 of 3 clients"):
        learn("x", tiny(), data, SMALL, {})


def test_a_curve_settles_over_its_last_rounds_and_reads_itself_again() -> None:
    curve = Curve("x", {key: [r / 20 for r in range(1, 13)] for key in SERIES})
    assert curve.settled_after(12) == pytest.approx(sum(range(3, 13)) / 200)
    assert curve.settled_after(1) == 1 / 20
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"scheme": "esafl", "top_k": 0.1}, "sparse updates with ESAFL"),
        ({"bits": 99}, "99"),
    ],
    ids=str,
)
def test_arguments_that_are_refused_before_anything_runs(
    arguments: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = curves.Comparison("FCN", SMALL, (("wrong", arguments),))
    monkeypatch.setitem(COMPARISONS, "fcn", told)
    monkeypatch.setattr(curves, "learn", lambda *_, **__: pytest.fail("it runs"))
    with pytest.raises(ConfigError, match=says):
        strategy(SMALL, 10, arguments)
    with pytest.raises(ConfigError, match=says):
        compare("fcn")


# --- the papers' workloads ---


def test_every_workload_has_the_schemes_of_its_papers() -> None:
    assert set(COMPARISONS) == {"fcn", "alexnet", "lstm", "resnet20", "gru", "cnn"}
    for name, comparison in COMPARISONS.items():
        schemes = [arguments["scheme"] for _, arguments in comparison.runs]
        batched = name in ("fcn", "alexnet", "lstm")
        assert schemes[:2] == (["batchcrypt", "esafl"] if batched else ["flashe"] * 2)
        assert ("sash" in schemes) == (name in ("cnn", "resnet20", "lstm"))
        for _, arguments in comparison.runs:
            assert strategy(comparison.setting, 100, arguments).terms.bits == 16


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

    data = generated(WORKLOADS["lstm"], 4, 0)
    monkeypatch.setattr(curves, "learn", invented)
    monkeypatch.setattr(type(WORKLOADS["lstm"]), "load", lambda *_, **__: data)
    compare("lstm")
    shorter = ("BatchCrypt, 2048-bit key", 8)
    assert asked == [(PLAIN, 20), shorter, ("ESAFL", 20), ("SASH", 20)]
    compare("lstm", rounds=4)
    assert [rounds for _, rounds in asked[4:]] == [4] * 4


def test_models_without_data_are_left_out_and_curves_say_how_far_apart_they_lie() -> None:
    (section,) = tables.SECTIONS
    names = [step.key.rpartition("-")[0] for step in section.steps(Plan(quick=False))]
    assert names == ["curves-fcn-digits", "curves-cnn-digits"]
    accuracies = {PLAIN: [0.1, 0.4, 0.6], "FLASHE": [0.1, 0.5]}
    found = [
        Curve(name, {**{key: [0.0] * len(each) for key in SERIES}, "accuracy": each}).to_json()
        for name, each in accuracies.items()
    ]
    data = {step.key: {"task": "digits", "curves": found} for step in section.steps(Plan(True))}
    (result,) = section.report(Plan(quick=True), data)
    lines = [(e.x, e.number.value) for e in result.entries if e.what == "accuracy"]
    assert lines == [(1, 0.1), (2, 0.4), (3, 0.6), (1, 0.1), (2, 0.5)]
    assert "FLASHE 0.100 in 2 rounds, +0.0500 over the last" in result.notes[1]

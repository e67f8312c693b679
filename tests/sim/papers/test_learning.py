"""Federations of any scheme that learn: on the same batches, and to the same models as plain ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

import torch
from torch import nn

from flhe.errors import ConfigError, FlheError
from flhe.strategies.report import RoundReport
from flhe.training.optimizer import ServerOptimizer
from flhe_app.tasks import base, generated, task_named
from flhe_app.tasks.base import Data, Examples
from flhe_lab.papers import learners, learning
from flhe_lab.papers.learning import Curve, Setting, learn

SMALL = Setting(3, 2, images=40, batch_size=20, learning_rate=0.05, test_images=20)
DIGITS = task_named("digits")


@dataclass(frozen=True)
class Tiny:
    """A task whose rounds take no time: pixels to classes, by way of batch norm where asked."""

    name: str = "tiny"
    train_size: int = 1437
    classes: int = 10
    norm: bool = False

    def build(self) -> nn.Module:
        norm = (nn.BatchNorm1d(64),) if self.norm else ()
        return nn.Sequential(nn.Flatten(), *norm, nn.Linear(64, 10))

    def load(self, data_dir: str, *, download: bool) -> Data:
        return DIGITS.load(data_dir, download=download)


@pytest.fixture(scope="module")
def data() -> Data:
    return Tiny().load("", download=False)


@pytest.fixture(scope="module")
def plain(data: Data) -> Curve:
    return learn("plain", Tiny(), data, SMALL, None)


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ({"bits": 20}, "flashe_fedavg"),
        ({"scheme": "sash"}, "sash_fedavg"),
        ({"scheme": "batchcrypt", "key_bits": 2048, "bits": 20, "clip": 1.0}, "batchcrypt_fedavg"),
        ({"scheme": "esafl", "bits": 20}, "esafl_fedavg"),
        ({"scheme": "fedml-he", "bits": 20}, "fedml_he_fedavg"),
    ],
    ids=str,
)
def test_any_scheme_learns_what_plain_clients_learn(
    arguments: dict[str, Any], strategy: str, data: Data, plain: Curve
) -> None:
    curve = learn("ours", Tiny(), data, SMALL, arguments)
    assert curve.series["loss"] == pytest.approx(plain.series["loss"], abs=2e-3)
    assert curve.gap(plain) <= 2 / 60  # a test image or two of sixty
    assert (curve.rounds, curve.to_json()["strategy"]) == (2, strategy)
    assert min(curve.series["crypto_s"]) > 0


def test_a_round_for_the_map_counts_with_the_first(data: Data, plain: Curve) -> None:
    heard: list[int] = []
    arguments = {"scheme": "fedml-he", "select": 0.3, "weighted": True}
    with pytest.raises(ConfigError, match="weighted"):
        learn("weighted", Tiny(), data, SMALL, arguments)
    del arguments["weighted"]
    curve = learn(
        "part", Tiny(), data, SMALL, arguments, on_round=lambda report: heard.append(report.round)
    )
    assert heard == [2, 3]
    assert curve.rounds == 2
    # All clients hold as many images, so weights change nothing
    assert curve.series["loss"] == pytest.approx(plain.series["loss"], abs=2e-3)
    first, second = curve.series["bytes_up"]
    assert first > 1.5 * second


def test_a_curve_may_be_shorter(data: Data, plain: Curve) -> None:
    curve = learn("short", Tiny(), data, SMALL, {"scheme": "esafl", "rounds": 1})
    assert curve.rounds == 1
    assert curve.gap(plain) == abs(curve.series["accuracy"][0] - plain.series["accuracy"][0])
    assert plain.settled_after(1) == plain.series["accuracy"][0]
    for rounds in (0, 3, True, "1"):
        with pytest.raises(ConfigError, match=r"rounds=.*: must be 1 to the setting's 2"):
            learning.rounds_of(SMALL, {"rounds": rounds})


def test_an_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match="scheme='plain' is unknown; use one of flashe, sash"):
        learning.strategy(SMALL, 10, {"scheme": "plain"})
    with pytest.raises(ConfigError, match=r"esafl_fedavg with top_k: .*top_k"):
        learning.strategy(SMALL, 10, {"scheme": "esafl", "top_k": 0.1})


def test_batch_norm_travels(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counter of batches exactly, as an integer; its means and variances as weights do."""
    states: list[dict[str, Any]] = []
    real = base.evaluate

    def spy(model: nn.Module, examples: Examples, **how: Any) -> Any:
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return real(model, examples, **how)

    monkeypatch.setattr(base, "evaluate", spy)
    task = Tiny(norm=True)
    for how in (None, {"bits": 20}):
        learn("norm", task, data, SMALL, how)
    assert len(states) == 2 * 2 * 3  # federations, rounds, clients
    plain, ours = states[:6], states[6:]
    for server_round in (1, 2):
        for theirs, mine in zip(
            plain[3 * server_round - 3 : 3 * server_round],
            ours[3 * server_round - 3 : 3 * server_round],
            strict=True,
        ):
            counter = mine["1.num_batches_tracked"]
            assert counter.dtype == torch.int64
            assert int(counter) == int(theirs["1.num_batches_tracked"]) == 2 * server_round
            for name in ("1.running_mean", "1.running_var", "1.weight", "2.weight"):
                assert torch.allclose(mine[name], theirs[name], atol=1e-3)
            assert float((mine["1.running_var"] - 1).abs().max()) > 0.1  # it has moved


def test_text_is_learned_in_pieces() -> None:
    task = task_named("gru")
    data = generated(task, 40, 0)
    setting = Setting(3, 1, batch_size=4, batches=1, optimizer="adam", split="pieces")
    parts = learners.parts_of(data, setting)
    assert [len(part.train.labels) for part in parts] == [14, 13, 13]
    assert torch.equal(parts[0].train.images, data.train.images[:14])
    plain, ours = (learn("text", task, data, setting, how) for how in (None, {"bits": 20}))
    assert ours.series["loss"] == pytest.approx(plain.series["loss"], rel=1e-3)
    assert plain.series["loss"][0] == pytest.approx(np.log(task.classes), rel=0.1)


def test_a_client_holds_no_more_images_than_it_should(data: Data) -> None:
    parts = learners.parts_of(data, SMALL)
    assert [len(part.train.labels) for part in parts] == [40] * 3
    assert [len(part.test.labels) for part in parts] == [20] * 3
    whole = learners.parts_of(data, replace(SMALL, images=0))
    assert [len(part.train.labels) for part in whole] == [479] * 3
    with pytest.raises(ConfigError, match="share is 479 training images"):
        learners.parts_of(data, replace(SMALL, images=480))
    with pytest.raises(ConfigError, match="test_images=121: a client's share is 120 test images"):
        learners.parts_of(data, replace(SMALL, test_images=121))


def test_coarse_values_are_another_curve_and_clients_may_work_at_a_time(
    data: Data, plain: Curve
) -> None:
    heard: list[RoundReport] = []
    coarse = learn(
        "coarse", Tiny(), data, SMALL, {"bits": 4, "clip": 4.0}, workers=2, on_round=heard.append
    )
    assert [report.round for report in heard] == [1, 2]
    assert coarse.series["accuracy"] == [report.accuracy for report in heard]
    assert coarse.series["loss"] != pytest.approx(plain.series["loss"], abs=1e-4)
    assert (plain.arguments, coarse.arguments) == (None, {"bits": 4, "clip": 4.0})


def test_a_round_without_all_clients_is_no_curve(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    class One:
        terms = SimpleNamespace(mapped=False)

        def __init__(self, setting: Setting, _most: int, _how: Any, note: Any) -> None:
            self.note, self.clients = note, setting.clients

        def start(self, **_: Any) -> None:
            self.note(RoundReport(1, 0.5, 1.0, 1, 1, 0.0, 0.1, self.clients - 1))

    monkeypatch.setattr(learning, "strategy", One)
    with pytest.raises(FlheError, match="x, round 1: 2 of 3 clients"):
        learn("x", Tiny(), data, SMALL, {})


def test_a_curve_settles_over_its_last_rounds_and_reads_itself_again() -> None:
    series = {key: [r / 20 for r in range(1, 13)] for key in learning.SERIES}
    curve = Curve("x", {"bits": 8}, series)
    assert curve.settled == pytest.approx(sum(range(3, 13)) / 200)
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    assert Curve("plain", None, series).to_json()["strategy"] == "FedAvg"


def test_arguments_are_told_as_json() -> None:
    found = learning.as_json({"warmup": (0.2, 0.6), "server_optimizer": ServerOptimizer()})
    assert found is not None
    assert found["warmup"] == [0.2, 0.6]
    assert found["server_optimizer"].startswith("ServerOptimizer(")
    assert learning.as_json(None) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"clients": 2}, "3 or more"),
        ({"rounds": 0}, "rounds=0"),
        ({"local_epochs": 0}, "local_epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"images": -1}, "images=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"test_images": -1}, "test_images=-1"),
        ({"batches": -1}, "batches=-1"),
        ({"optimizer": "adamw"}, "optimizer='adamw' is unknown; use one of sgd, adam, rmsprop"),
        ({"split": "dirichlet"}, "split='dirichlet' is unknown; use one of iid, pieces"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_trained(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Setting(**changed)

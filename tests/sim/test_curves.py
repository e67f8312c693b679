"""Learning curves: that they compare like with like, and what is written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

import typer
from rich.console import Console
from typer.testing import CliRunner

from flhe.apps.tasks import task_named
from flhe.apps.tasks.base import Data, Task
from flhe.errors import ConfigError, FlheError
from flhe.rounds.optimizer import ServerOptimizer
from flhe.sim import curves, learners, learning
from flhe.sim.curves import PLAIN, parse_run
from flhe.sim.papers.learning import SERIES, Arguments, Curve, Setting, learn
from flhe.strategies.report import RoundReport

SMALL = Setting(clients=3, rounds=2, images=60, learning_rate=0.05)
DIGITS = task_named("digits")


@pytest.fixture(scope="module")
def data() -> Data:
    return DIGITS.load("", download=False)


def invented(name: str, arguments: dict[str, Any] | None = None, rounds: int = 12) -> Curve:
    reports = [RoundReport(r, r / 20, 1.0, 10**6, 10**6, 0.0, 0.5, 3) for r in range(1, rounds + 1)]
    series = {key: [getattr(report, key) for report in reports] for key in SERIES}
    return Curve(name, arguments, series)


def test_encrypted_clients_train_what_plain_ones_train(data: Data) -> None:
    """Finely quantized, FLASHE's curve is FedAvg's."""
    plain = learn(PLAIN, DIGITS, data, SMALL, None)
    again = learn(PLAIN, DIGITS, data, SMALL, None)
    ours = learn("FLASHE", DIGITS, data, SMALL, {"bits": 24})
    coarse = learn("coarse", DIGITS, data, SMALL, {"bits": 4, "clip": 4.0})
    # FedAvg adds up in the order in which replies are found, which last bits depend on
    assert plain.series["loss"] == pytest.approx(again.series["loss"], rel=1e-6)
    assert ours.series["loss"] == pytest.approx(plain.series["loss"], abs=1e-4)
    assert ours.series["accuracy"] == pytest.approx(plain.series["accuracy"], abs=0.01)
    assert coarse.series["loss"] != pytest.approx(plain.series["loss"], abs=1e-4)
    assert coarse.series["bytes_up"][0] < plain.series["bytes_up"][0] / 4
    assert all(len(series) == 2 for series in plain.series.values())
    assert (plain.arguments, ours.arguments) == (None, {"bits": 24})


def test_clients_may_work_at_a_time(data: Data) -> None:
    heard: list[RoundReport] = []
    curve = learn("two", DIGITS, data, SMALL, {}, workers=2, on_round=heard.append)
    assert [report.round for report in heard] == [1, 2]
    assert curve.series["accuracy"] == [report.accuracy for report in heard]


def test_a_client_holds_no_more_images_than_it_should(data: Data) -> None:
    parts = learners.parts_of(data, SMALL)
    assert [len(part.train.labels) for part in parts] == [60] * 3
    assert [len(part.test.labels) for part in parts] == [120] * 3
    whole = learners.parts_of(data, replace(SMALL, images=0))
    assert [len(part.train.labels) for part in whole] == [479] * 3
    with pytest.raises(ConfigError, match="share is 479 training images"):
        learners.parts_of(data, replace(SMALL, images=480))


def test_a_round_without_all_clients_is_no_curve(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def strategy(setting: Setting, _most: int, arguments: Any, note: Any) -> Any:
        class One:
            class terms:  # noqa: N801
                mapped = False

            def start(self, **_: Any) -> None:
                calls.append(arguments)
                note(RoundReport(1, 0.5, 1.0, 1, 1, 0.0, 0.1, setting.clients - 1))

        return One()

    monkeypatch.setattr(learning, "strategy", strategy)
    with pytest.raises(FlheError, match="x, round 1: 2 of 3 clients"):
        learn("x", DIGITS, data, SMALL, {})
    assert calls == [{}]


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
    ],
)
def test_settings_that_cannot_be_trained(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Setting(**changed)


def test_arguments_are_told_as_json() -> None:
    found = learning.as_json(
        {"bits": 8, "warmup": (0.2, 0.6), "server_optimizer": ServerOptimizer()}
    )
    assert found is not None
    assert (found["bits"], found["warmup"]) == (8, [0.2, 0.6])
    assert found["server_optimizer"].startswith("ServerOptimizer(")
    assert learning.as_json(None) is None


def test_a_curve_settles_over_its_last_rounds() -> None:
    curve = invented("x", {"bits": 8})
    assert curve.settled == pytest.approx(sum(range(3, 13)) / 200)
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    assert invented(PLAIN).to_json()["strategy"] == "FedAvg"
    assert invented("y", {}, rounds=1).settled == 0.05


class Recorder:
    """Stands for `learn`: invents curves, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.how: list[Any] = []

    def __call__(
        self,
        name: str,
        task: Task,
        _data: Data,
        setting: Setting,
        arguments: Arguments | None,
        *,
        workers: int,
        threads: int,
        on_round: Any,
    ) -> Curve:
        self.asked.append(name)
        self.how.append((task.name, setting, workers, threads))
        on_round(RoundReport(1, 0.25, 1.0, 1, 1, 0.0, 0.1, setting.clients))
        return invented(name, learning.as_json(arguments), setting.rounds)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(curves, "learn", recorder)
    return recorder


def test_figure_and_data(learned: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "c.png"
    heard: list[tuple[int, int, str]] = []
    runs: dict[str, Arguments | None] = {PLAIN: None, "ours": {"bits": 8}}
    found = curves.curves(path, DIGITS, SMALL, runs, progress=lambda *step: heard.append(step))
    assert [curve.name for curve in found] == learned.asked == [PLAIN, "ours"]
    assert heard == [
        (1, 4, f"{PLAIN}: accuracy 0.2500"),
        (3, 4, "ours: accuracy 0.2500"),
    ]
    assert path.read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "c.json").read_text())
    assert (told["format"], told["version"], told["task"]) == ("flhe learning curves", 1, "digits")
    assert told["made_by"]["command"] == "python -m flhe.sim.curves"
    assert Setting(**told["setting"]) == SMALL
    assert [c["arguments"] for c in told["curves"]] == [None, {"bits": 8}]
    assert told["curves"][1]["accuracy"] == [0.05, 0.1]


def test_what_is_there_is_not_run_again(learned: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "c.png"
    curves.curves(path, DIGITS, SMALL, {PLAIN: None, "a": {}}, resume=True)
    found = curves.curves(
        path, DIGITS, SMALL, {PLAIN: None, "a": {"bits": 8}, "b": {}}, resume=True
    )
    assert learned.asked == [PLAIN, "a", "a", "b"]
    assert [(c.name, c.arguments) for c in found] == [(PLAIN, None), ("a", {"bits": 8}), ("b", {})]
    assert len(curves.curves(path, DIGITS, SMALL, {PLAIN: None}, resume=True)) == 3
    path.unlink()
    curves.curves(path, DIGITS, SMALL, {}, resume=True)  # draws it again
    assert path.is_file()
    assert len(learned.asked) == 4
    with pytest.raises(ConfigError, match="another task or setting"):
        curves.curves(path, DIGITS, replace(SMALL, seed=1), {}, resume=True)
    for text in ("{", "[]", '{"format": "other", "version": 1}'):
        path.with_suffix(".json").write_text(text)
        with pytest.raises(ConfigError, match=r"c\.json: (cannot be read|holds no curves)"):
            curves.curves(path, DIGITS, SMALL, {}, resume=True)


def test_arguments_are_refused_before_anything_runs(learned: Recorder, tmp_path: Path) -> None:
    for wrong, says in (
        ({"top_q": 0.1}, "flashe_fedavg with top_q: .*top_q"),
        ({"bits": 99}, "99"),
    ):
        runs: dict[str, Arguments | None] = {PLAIN: None, "wrong": wrong}
        with pytest.raises(ConfigError, match=says):
            curves.curves(tmp_path / "c.png", DIGITS, SMALL, runs)
    assert learned.asked == []


def test_a_run_is_a_name_and_arguments() -> None:
    run = 'top 10%={"top_k": 0.1, "masking": "adaptive"}'
    assert parse_run(run) == ("top 10%", {"top_k": 0.1, "masking": "adaptive"})
    for text in ("dense", "={}", "x=", "x=[1]", "x={bits: 8}"):
        with pytest.raises(ConfigError, match="must be NAME=JSON"):
            parse_run(text)


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(curves.command)
    return app


def test_the_command(learned: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.png"
    options = ["--clients", "4", "--rounds", "12", "--images", "30", "--learning-rate", "0.1"]
    options += ["--workers", "2", "--seed", "3", "--local-epochs", "2", "--batch-size", "16"]
    runs = ["--run", "a={}", "--run", 'b={"bits": 8}']
    done = CliRunner().invoke(command(), [str(path), *options, *runs])
    assert done.exit_code == 0, done.output
    assert learned.asked == [PLAIN, "a", "b"]
    assert learned.how[0] == ("digits", Setting(4, 12, 30, 2, 16, 0.1, 3), 2, 1)
    assert "settled" in done.output
    # The data directory comes from the environment too; there is nothing in this one
    monkeypatch.setenv("FLHE_DATA_DIR", str(tmp_path))
    failed = CliRunner().invoke(command(), [str(path), "--task", "cifar10"])
    assert failed.exit_code == 1
    assert "cifar-10-batches-py/ is missing or damaged" in failed.output
    assert len(learned.asked) == 3


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(curves.table([invented(PLAIN), invented("FLASHE, top 10 %", {})], "digits"))
    text = console.export_text()
    assert "+0.0000" in text
    assert "12.0 MB" in text
    assert "…" not in text

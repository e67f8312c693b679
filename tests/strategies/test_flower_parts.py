"""Flower's own mods, strategies and wrappers beside ours: what works, and what is said otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from flhe.errors import ConfigError, QuorumError
from flhe.mods import HEMod, he_mod, records, stages
from flhe.strategies import HEStrategy, flashe_fedavg, save_sealed
from tests.strategies.puppets import Node, Puppets, initial, new_node

pytestmark = pytest.mark.usefixtures("quick")


def train(grid: Puppets, strategy: Strategy | None = None, rounds: int = 2) -> Any:
    try:
        return (strategy or flashe_fedavg(max_examples=100)).start(grid, initial(), rounds)
    finally:
        grid.close()


def refusal(grid: Puppets, strategy: Strategy | None = None) -> str:
    with pytest.raises((ConfigError, QuorumError)) as caught:
        train(grid, strategy)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _says_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_said", set())


# --- mods ---


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
def test_mods_that_measure_stand_before_ours(tmp_path: Path, mod: Any) -> None:
    grid = Puppets(tmp_path, 3, Node(mod, HEMod()))
    train(grid)
    assert {grid.model(i).round for i in range(3)} == {2}


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
def test_mods_that_change_updates_do_not(tmp_path: Path, mod: Any) -> None:
    text = refusal(Puppets(tmp_path, 3, Node(mod, HEMod())))
    assert "a mod before HEMod refused the message" in text
    assert "put HEMod() first" in text


def test_a_mod_before_ours_that_raises(tmp_path: Path) -> None:
    def broken(message: Message, context: Context, call_next: Any) -> Message:
        raise IndexError("patient 4711")

    text = refusal(Puppets(tmp_path, 3, Node(broken, HEMod())))
    assert "put HEMod() first in ClientApp(mods=[...])" in text
    assert "4711" not in text


def noisy_app() -> ClientApp:
    """What the documentation shows: noise on the app's own update, before it is encrypted."""
    app = ClientApp(mods=[HEMod()])
    inner = new_node()

    @app.train(mods=[LocalDpMod(1e6, 1e-3, 1e3, 1e-5)])
    def _train(message: Message, context: Context) -> Message:
        return inner_train(inner, message, context)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        told = {"num-examples": 10, "loss": 0.5}
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    return app


def inner_train(node: Node, message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    arrays = records.to_numpy(message.content["arrays"])  # type: ignore[arg-type]
    content = RecordDict({"metrics": MetricRecord({"num-examples": 10})})
    content["arrays"] = records.from_numpy(node.trained(arrays, partition))
    return Message(content, reply_to=message)


def test_a_mod_of_the_train_function_works(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3, noisy_app())
    train(grid)
    assert {grid.model(i).round for i in range(3)} == {2}


# --- strategies ---


def test_a_subclass_works(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(HEStrategy):
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            seen.append(server_round)
            return super().configure_train(server_round, *rest)

    train(Puppets(tmp_path, 3), Counting(flashe_fedavg(max_examples=100).terms))
    assert seen == [1, 2]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: DifferentialPrivacyClientSideFixedClipping(s, 1.0, 1.0, 3),
        lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 3),
    ],
)
def test_a_wrapper_is_told_why_not(tmp_path: Path, wrap: Callable[[HEStrategy], Strategy]) -> None:
    text = refusal(Puppets(tmp_path, 3), wrap(flashe_fedavg()))
    assert "runs its rounds itself" in text
    assert "LocalDpMod" in text


def test_a_start_of_ones_own_is_told_why_not(tmp_path: Path) -> None:
    class Own(HEStrategy):
        def start(self, grid: Any, initial_arrays: Any, num_rounds: int = 3, **_: Any) -> Any:
            self.configure_train(1, initial_arrays, ConfigRecord(), grid)

    assert "Call its own start()" in refusal(Puppets(tmp_path, 3), Own())


def test_accuracy_by_the_name_that_flowers_apps_give_it(tmp_path: Path) -> None:
    app = new_node()
    app.evaluated = lambda partition: {"eval_acc": 0.75, "eval_loss": 0.5}
    reports: list[Any] = []
    strategy = flashe_fedavg(max_examples=100, on_round=reports.append)
    train(Puppets(tmp_path, 3, app), strategy)
    assert [(r.accuracy, r.loss) for r in reports] == [(0.75, 0.5)] * 2


# --- the app ---


def test_an_app_that_fails_everywhere_is_not_asked_again(tmp_path: Path) -> None:
    app = new_node()

    def examples(partition: int) -> int:
        raise NameError("modle")

    app.examples = examples
    text = refusal(Puppets(tmp_path, 4, app))
    assert "flhe/app-failed" in text
    assert len(app.ran) == 4, "each node's app ran once"


def test_an_app_that_fails_on_a_few_nodes_is(tmp_path: Path) -> None:
    app = new_node()
    failures = iter([True, True])

    def examples(partition: int) -> int:
        if partition < 2 and next(failures, False):
            raise OSError("the data was away for a moment")
        return 10

    app.examples = examples
    grid = Puppets(tmp_path, 4, app)
    train(grid, flashe_fedavg(max_examples=100, min_replies=4))
    assert grid.model(0).round == 2


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulation_shows_the_apps_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    simulated: bool,
) -> None:
    """Its author looks on; what an app of a deployed node raises may hold a patient's data."""
    monkeypatch.setattr(he_mod, "_simulated", lambda: True)
    app = new_node()

    def examples(partition: int) -> int:
        return modle  # type: ignore[name-defined,no-any-return]  # noqa: F821

    app.examples = examples
    grid = Puppets(tmp_path, 3, app)
    if simulated:  # else they have settings of ours: somebody has deployed them
        monkeypatch.setenv("FLHE_HOME", str(tmp_path / "home"))
        for context in grid.contexts.values():
            own = [key for key in context.node_config if key.startswith("flhe-")]
            for key in own:
                del context.node_config[key]
    with caplog.at_level(logging.ERROR, "flhe"):
        refusal(grid)
    assert ("name 'modle' is not defined" in caplog.text) == simulated
    assert ("Traceback" in caplog.text) == simulated


def test_what_a_reply_cannot_carry_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = ClientApp(mods=[HEMod()])
    inner = new_node()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        reply = inner_train(inner, message, context)
        reply.content["mine"] = ConfigRecord({"seen": 1})
        metrics = {"num-examples": 10, "f1": 0.5}
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        told = {"num-examples": 10, "loss": 0.5}
        content = RecordDict({"metrics": MetricRecord(told), "model": ArrayRecord()})
        return Message(content, reply_to=message)

    train(Puppets(tmp_path, 3, app))
    assert "the app's ConfigRecord 'mine' stays on this node" in caplog.text
    assert "the app's ArrayRecord 'model' stays on this node" in caplog.text
    assert "'f1' stays on this node: allow it with flhe-metrics" in caplog.text
    assert (
        "which lists all that may leave, and name it in the strategy's train_metrics" in caplog.text
    )


def test_no_array_of_the_models_is_its_own_fault(tmp_path: Path) -> None:
    app = new_node()
    calls: list[int] = []

    def trained(arrays: Any, partition: int) -> Any:
        calls.append(partition)
        return {"w": np.zeros(3, np.float32)}

    app.trained = trained
    text = refusal(Puppets(tmp_path, 3, app))
    assert "flhe/reply: its app must reply with one ArrayRecord that holds all" in text
    assert len(calls) == 3, "a reply that no strategy takes is not asked for again"


def test_too_few_nodes_are_waited_for_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        refusal(Puppets(tmp_path, 2), flashe_fedavg(connect_timeout=0.1))
    assert "2 of 3 nodes are connected, waiting up to 0.1 s" in caplog.text
    assert "num-supernodes=3" in caplog.text


def test_where_a_sealed_model_was_written_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(Puppets(tmp_path / "nodes", 3))
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "flwr"):
        save_sealed(result, "model.flhe")
    assert f"Sealed model: {tmp_path / 'model.flhe'}" in caplog.text
    assert f"flhe open {tmp_path / 'model.flhe'} --key" in caplog.text

"""Flower's own mods, strategies and wrappers beside ours: what works, and what is said otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from flhe.errors import ConfigError, QuorumError
from flhe.mods import HEMod, he_mod, training
from flhe.strategies import FlasheFedAvg, HEStrategy, save_sealed
from tests.strategies.puppets import Node, Puppets, initial, same

pytestmark = pytest.mark.usefixtures("quick")


def train(grid: Puppets, strategy: Strategy | None = None, rounds: int = 2) -> Any:
    try:
        return (strategy or FlasheFedAvg(max_examples=100)).start(grid, initial(), rounds)
    finally:
        grid.close()


def refusal(grid: Puppets, strategy: Strategy | None = None) -> str:
    with pytest.raises((ConfigError, QuorumError)) as caught:
        train(grid, strategy)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _says_again() -> None:
    training.say_once.cache_clear()


# --- mods ---


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
def test_mods_that_measure_stand_before_ours(tmp_path: Path, mod: Any) -> None:
    grid = Puppets(tmp_path, 3, Node(mod, HEMod()))
    train(grid)
    assert same(grid, range(3)).round == 2


def broken(message: Message, context: Context, call_next: Any) -> Message:
    raise IndexError("patient 4711")


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5), broken])
def test_mods_that_change_updates_or_fail_do_not(tmp_path: Path, mod: Any) -> None:
    text = refusal(Puppets(tmp_path, 3, Node(mod, HEMod())))
    assert mod is broken or "a mod before HEMod refused the message" in text
    assert "put HEMod() first in ClientApp(mods=[...])" in text
    assert "4711" not in text


def test_a_mod_of_the_train_function_works(tmp_path: Path) -> None:
    """What the documentation shows: noise on the app's own update, before it is encrypted."""
    app, inner = ClientApp(mods=[HEMod()]), Node()
    app.train(mods=[LocalDpMod(1e6, 1e-3, 1e3, 1e-5)])(inner.__call__)
    app.evaluate()(inner.__call__)
    grid = Puppets(tmp_path, 3, app)
    train(grid)
    assert same(grid, range(3)).round == 2


# --- strategies ---


def test_a_subclass_works(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(FlasheFedAvg):
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            seen.append(server_round)
            return super().configure_train(server_round, *rest)

    train(Puppets(tmp_path, 3), Counting(max_examples=100))
    assert seen == [1, 2, 1, 2]  # for the contract, then for the rounds


@pytest.mark.parametrize(
    "wrap",
    [DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping],
)
def test_a_wrapper_is_told_why_not(tmp_path: Path, wrap: Callable[..., Strategy]) -> None:
    text = refusal(Puppets(tmp_path, 3), wrap(FlasheFedAvg(), 1.0, 1.0, 3))
    assert "runs its rounds itself" in text
    assert "LocalDpMod" in text


def test_a_start_of_ones_own_is_told_why_not(tmp_path: Path) -> None:
    class Own(HEStrategy):
        def start(self, grid: Any, initial_arrays: Any, num_rounds: int = 3, **_: Any) -> Any:
            self.configure_train(1, initial_arrays, ConfigRecord(), grid)

    assert "Call its own start()" in refusal(Puppets(tmp_path, 3), Own())


def test_accuracy_by_the_name_that_flowers_apps_give_it(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    grid.app.evaluated = lambda partition: {"eval_acc": 0.75, "eval_loss": 0.5}
    train(grid, grid.timed(FlasheFedAvg(max_examples=100)))
    assert [(r.accuracy, r.loss) for r in grid.reports] == [(0.75, 0.5)] * 2


# --- the app ---


@pytest.mark.parametrize(
    ("name", "does", "said"),
    [
        ("examples", lambda partition: modle, "flhe/app-failed"),  # noqa: F821
        (
            "trained",
            lambda arrays, partition: {"w": np.zeros(3, np.float32)},
            "flhe/reply: its app must reply with one ArrayRecord that holds all",
        ),
    ],
)
def test_an_app_that_fails_everywhere_is_not_asked_again(
    tmp_path: Path, name: str, does: Any, said: str
) -> None:
    grid = Puppets(tmp_path, 4)
    setattr(grid.app, name, does)
    assert said in refusal(grid)
    assert len(grid.app.ran) == 4, "each node's app ran once"


def test_an_app_that_fails_on_a_few_nodes_is(tmp_path: Path) -> None:
    grid, failures = Puppets(tmp_path, 4), iter([True, True])

    def examples(partition: int) -> int:
        if partition < 2 and next(failures, False):
            raise OSError("the data was away for a moment")
        return 10

    grid.app.examples = examples
    train(grid, FlasheFedAvg(max_examples=100, min_replies=4))
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
    grid = Puppets(tmp_path, 3)
    grid.app.examples = lambda partition: modle  # noqa: F821
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
    def adds(message: Message, context: Context, after: Any) -> Message:
        reply: Message = after(message, context)
        if "arrays" in reply.content:
            reply.content["mine"] = ConfigRecord({"seen": 1})
            reply.content["metrics"]["f1"] = 0.5
        else:
            reply.content["model"] = ArrayRecord()
        return reply

    train(Puppets(tmp_path, 3, Node(HEMod(), adds)))
    for said in (
        "the app's ConfigRecord 'mine' stays on this node",
        "the app's ArrayRecord 'model' stays on this node",
        "'f1' stays on this node: allow it with flhe-metrics",
        "which lists all that may leave, and name it in the strategy's train_metrics",
    ):
        assert said in caplog.text


def test_too_few_nodes_are_waited_for_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        refusal(Puppets(tmp_path, 2), FlasheFedAvg(connect_timeout=0.1))
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

"""Flower's own mods, strategies and wrappers beside ours: what works, and what is said otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from flhe.errors import ConfigError, QuorumError
from flhe.mods import HEMod, training
from flhe.strategies import FlasheFedAvg
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


@pytest.mark.parametrize(
    "wrap", [DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping]
)
def test_a_wrapper_is_told_why_not(tmp_path: Path, wrap: Callable[..., Strategy]) -> None:
    text = refusal(Puppets(tmp_path, 3), wrap(FlasheFedAvg(), 1.0, 1.0, 3))
    assert "runs its rounds itself" in text
    assert "LocalDpMod" in text


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

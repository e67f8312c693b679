"""README's examples run as printed, and it says beside them against whom each scheme protects."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe import strategies
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SashFedAvg, save_sealed
from flhe.testing import InProcessGrid
from flhe_lab.bench.synthetic import client_app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
RECIPE = README.partition("\n## In your own Flower app\n")[2].partition("\n### ")[0]
CLIENT, SERVER = re.findall(r"^```python\n(.*?)^```", RECIPE, re.MULTILINE | re.DOTALL)
_TEST = README.partition("\n### Test it\n")[2].partition("\n### ")[0]
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```", _TEST, re.MULTILINE | re.DOTALL)
SAFE = 'SashFedAvg(unmask="clients")'
ROUNDS, STEP = 10, 0.25


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for disks: the store has tests of its own."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def client() -> ClientApp:
    scope: dict[str, Any] = {"ClientApp": ClientApp}
    exec(CLIENT, scope)
    app: ClientApp = scope["app"]

    @app.train()
    def train(message: Message, _context: Any) -> Message:
        (array,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"train_loss": 0.5, "num-examples": 120})
        content = RecordDict({"arrays": ArrayRecord([array + STEP]), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, _context: Any) -> Message:
        metrics = MetricRecord({"accuracy": 1.0, "num-examples": 30})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_the_recipe_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with InProcessGrid(client(), 5, homes=tmp_path) as grid:
        scope = {"grid": grid, "arrays": ArrayRecord([np.zeros((4, 3), np.float32)])}
        exec(SERVER, scope)
    assert scope["strategy"].terms.scheme == Sash(unmask="clients")
    model = open_checkpoint(tmp_path / "model.flhe", tmp_path / "node-0")
    (array,) = model.masters.values()
    assert np.allclose(array, ROUNDS * STEP, atol=1e-3)


def test_beside_the_recipe_stands_who_may_conspire_with_the_server() -> None:
    said = " ".join(RECIPE.partition(SERVER)[2].split())
    assert "one dishonest site together with the server reads every update" in said
    assert f"`strategy = {SAFE}`" in said
    assert "`strategy = FlasheFedAvg()`" in said


@pytest.mark.parametrize("name", ["FlasheFedAvg", "BatchCryptFedAvg", "FedmlHeFedAvg"])
def test_schemes_with_one_key_say_so(name: str) -> None:
    said = " ".join(str(getattr(strategies, name).__doc__).split())
    assert "Members share one key: any of them, together with the server, opens" in said
    assert f"`{SAFE}`" in said


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    scope: dict[str, Any] = {
        "app": client_app(),
        "arrays": ArrayRecord({"weights": Array(np.zeros((4, 3), np.float32))}),
        "SashFedAvg": SashFedAvg,
        "save_sealed": save_sealed,
        "open_checkpoint": open_checkpoint,
    }
    exec(EXAMPLE, scope)
    scope["test_my_app_trains"](tmp_path)
    assert len(list(tmp_path.glob("node-*"))) == 5

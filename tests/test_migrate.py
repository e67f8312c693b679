"""What the README and two pages print runs as printed, and what they name exists."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe import strategies
from flhe.node.checkpoint import open_checkpoint
from flhe.node.policy import settings
from flhe.schemes.sash.scheme import Sash
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_lab.bench.synthetic import client_app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
MARKED = re.compile(r"^<!-- runs: ([a-z-]+) -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = dict(MARKED.findall(PAGE))
ROUNDS, STEP = 3, 0.25


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for disks: the store has tests of its own."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def ran(name: str) -> dict[str, Any]:
    """What a block defines."""
    found: dict[str, Any] = {"__name__": name}
    exec(compile(CODE[name], f"docs/migrate.md {name}", "exec"), found)
    return found


def test_every_block_of_python_runs_here() -> None:
    assert PAGE.count("```python") == len(CODE) == len(MARKED.findall(PAGE)) == 7


def test_what_flower_had_is_as_the_page_says() -> None:
    from flwr.client.mod import secaggplus_mod
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    client, server = ran("secagg-before-client"), ran("secagg-before-server")
    assert client["secaggplus_mod"] is secaggplus_mod
    assert isinstance(server["secure"], SecAggPlusWorkflow)
    assert DefaultWorkflow(fit_workflow=server["secure"]).fit_workflow is server["secure"]
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):  # no other has room for its strategy
        server["secure"](None, context)


def federate(tmp: Path, client: str, server: str, nodes: int = 4) -> Any:
    app, found = ran(client)["app"], ran(server)
    config = {"flhe-server-reads": True}
    with InProcessGrid(app, nodes, homes=tmp, node_config=lambda _: config) as grid:
        found["app"](grid, Context(7, 1, {}, RecordDict(), {}))
    return found["results"][0]


def test_after_secagg_plus(tmp_path: Path) -> None:
    result = federate(tmp_path, "secagg-after-client", "secagg-after-server")
    (array,) = result.arrays.to_numpy_ndarrays()
    assert np.allclose(array, ROUNDS * STEP, atol=1e-3)


def test_after_flare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    monkeypatch.chdir(tmp_path)
    federate(tmp_path, "secagg-after-client", "flare-after-server", nodes=3)
    models = [
        Model.from_bytes(next((tmp_path / f"node-{i}").glob("runs/*/model")).read_bytes())
        for i in range(3)
    ]
    for model in models:
        (array,) = model.masters.values()
        # The last sum is opened when the next message comes.
        assert np.allclose(array, round(float(array[0, 0]) / STEP) * STEP, atol=1e-3)
        assert float(array[0, 0]) > STEP
    assert (tmp_path / "model.flhe").stat().st_size > 0


def test_by_hand_and_after() -> None:
    pytest.importorskip("tenseal")
    before, after = ran("tenseal-before"), ran("tenseal-after")
    exact = np.mean(before["updates"], axis=0)
    assert np.allclose(before["mean"][:3], exact, atol=1e-2)
    assert np.allclose(after["mean"], exact, atol=after["step"])


def test_settings_and_strategies_exist() -> None:
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`(flhe-[a-z-]+)[`=]", text):
        assert name in settings()
    aliases = set(re.findall(r"\b(\w+FedAvg)\b", text))
    assert aliases == {f"{s}FedAvg" for s in ("Flashe", "Sash", "Esafl", "FedmlHe", "BatchCrypt")}
    assert all(hasattr(strategies, name) for name in aliases)


# --- README ---


README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
RECIPE = README.partition("\n## In your own app\n")[2].partition("\n## ")[0]
CLIENT, SERVER = re.findall(r"^```python\n(.*?)^```", RECIPE, re.MULTILINE | re.DOTALL)
_TEST = (ROOT / "docs" / "how-to" / "test-my-app.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```", _TEST, re.MULTILINE | re.DOTALL)
RECIPE_ROUNDS = 2
"""Of the ten that it trains."""


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
        assert SERVER.count("num_rounds=10") == 1
        exec(SERVER.replace("num_rounds=10", f"num_rounds={RECIPE_ROUNDS}"), scope)
    assert scope["strategy"].terms.scheme == Sash(unmask="clients")
    model = open_checkpoint(tmp_path / "model.flhe", tmp_path / "node-0")
    (array,) = model.masters.values()
    assert np.allclose(array, RECIPE_ROUNDS * STEP, atol=1e-3)


def test_the_example_of_a_test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = ArrayRecord({"weights": Array(np.zeros((4, 3), np.float32))})
    for name, content in (("client", {"app": client_app()}), ("server", {})):
        module = ModuleType(f"my_app.{name}_app")
        vars(module).update(content, initial_arrays=lambda: arrays)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "my_app", ModuleType("my_app"))
    scope: dict[str, Any] = {}
    exec(EXAMPLE, scope)
    scope["test_my_app_trains"](tmp_path)
    assert len(list(tmp_path.glob("node-*"))) == 5

"""docs/migrate.md: code pairs run as printed, names exist, and what it says of Flower's is so."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from flwr.app import Context, RecordDict

from flhe import strategies
from flhe.cli import app as cli
from flhe.node.policy import settings
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_lab.bench.flower_parts import EXAMPLES, Client
from flhe_lab.bench.flower_secagg import FlowerSecAgg, Round

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


def test_counts_and_keys_of_flowers_mod_are_where_the_page_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, list[Any]] = {"reply": [], "state": []}
    handle = Client.handle

    def noted(client: Client, message: Any) -> Any:
        reply = handle(client, message)
        seen["reply"].append(reply.content)
        seen["state"].append(client._context.state.config_records)
        return reply

    monkeypatch.setattr(Client, "handle", noted)
    FlowerSecAgg(Round(5, 10, 5, 3))
    counts = [r["fitres.num_examples"] for r in seen["reply"] if "fitres.num_examples" in r]
    assert [list(count.values()) for count in counts] == [[EXAMPLES]] * 5  # not masked
    (record,) = seen["state"][-1].values()
    assert record["sk1"]
    assert record["sk2"]


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


def test_settings_strategies_and_commands_exist() -> None:
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`(flhe-[a-z-]+)[`=]", text):
        assert name in settings()
    aliases = set(re.findall(r"\b(\w+FedAvg)\b", text))
    assert aliases == {f"{s}FedAvg" for s in ("Flashe", "Sash", "Esafl", "FedmlHe", "BatchCrypt")}
    assert all(hasattr(strategies, name) for name in aliases)
    for line in re.findall(r"`flhe ([a-z ]+?)(?: --[^`]*)?`", text):
        command: click.Command = typer.main.get_command(cli)
        for word in line.split():
            if isinstance(command, click.Group):
                command = command.commands[word]
            else:  # the word is one of its arguments
                assert any(isinstance(each, click.Argument) for each in command.params), line


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-")
        for h in re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)
    }
    links = re.findall(r"\]\(#([a-z0-9-]+)\)", PAGE)
    assert links
    assert set(links) <= headings

"""Every example does what its README says, in one process."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flhe.coding.base import Mechanism
from flhe.errors import FlheError
from flhe.node.checkpoint import open_checkpoint
from flhe.provision.budgets import budget_of
from flhe.testing import InProcessGrid
from tests.source import ROOT

EXAMPLES = ROOT / "examples"


class Run:
    """Runs an example on five nodes whose homes are in this directory, where it also writes."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.patch = place, patch
        patch.chdir(place)
        patch.setattr(os, "fsync", lambda handle: None)
        torch.manual_seed(0)

    def node(self, number: int, **more: Any) -> dict[str, Any]:
        """One node's config."""
        home = {"flhe-home": str(self.place / f"node-{number}"), "flhe-trust": "first-use"}
        return {**home, "flhe-server-reads": True, **more}

    def __call__(self, path: Path, node: dict[str, Any] | None = None, **changed: Any) -> None:
        """With some of its settings changed."""
        said = tomllib.loads((path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        config = {**said["config"], **changed}
        self.patch.syspath_prepend(str(path))
        package = said["components"]["serverapp"].partition(".")[0]
        client, server, self.task = (
            import_module(f"{package}.{part}") for part in ("client_app", "server_app", "task")
        )

        def own(number: int) -> dict[str, Any]:
            return self.node(number, **node or {})

        with InProcessGrid(client.app, 5, run_config=config, node_config=own) as grid:
            server.main(grid, SimpleNamespace(run_config=config))

    task: ModuleType

    def model(self, name: str) -> dict[str, np.ndarray]:
        """A sealed model, opened by a member."""
        return dict(open_checkpoint(self.place / name, self.place / "node-0").masters)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    def forget() -> None:
        """Modules of examples, some of which another test may have imported."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith((str(EXAMPLES), str(tmp_path))):
                del sys.modules[name]

    forget()
    yield Run(tmp_path, monkeypatch)
    forget()


def accuracy(run: Run) -> float:
    """Of the model that the quickstart wrote, on digits that no node has."""
    model = run.task.Net()
    model.load_state_dict(torch.load(run.place / "final_model.pt"))
    return float(run.task.test(model, run.task.digits(slice(0, None, 5), 128))[1])


def test_quickstart_trains(run: Run) -> None:
    run(EXAMPLES / "quickstart-pytorch", **{"num-server-rounds": 2})
    assert accuracy(run) > 0.5


TWO_LINES = {
    "client_app.py": [
        ("from flhe.mods import HEMod\n", ""),
        ("ClientApp(mods=[HEMod()])", "ClientApp()"),
    ],
    "server_app.py": [
        ("from flhe.strategies import SashFedAvg", "from flwr.serverapp.strategy import FedAvg"),
        ("strategy = SashFedAvg(", "strategy = FedAvg("),
    ],
}


def test_quickstart_is_a_plain_flower_app_but_for_a_mod_and_a_strategy(run: Run) -> None:
    plain = run.place / "plain"
    shutil.copytree(EXAMPLES / "quickstart-pytorch", plain)
    for name, lines in TWO_LINES.items():
        text = (plain / "quickstart" / name).read_text()
        for ours, theirs in lines:
            assert text.count(ours) == 1
            text = text.replace(ours, theirs)
        (plain / "quickstart" / name).write_text(text)
        assert not [line for line in text.splitlines() if "flhe" in line or "HEMod" in line]
    run(plain, {"flhe-schemes": "plain"}, **{"num-server-rounds": 2})
    assert accuracy(run) > 0.5


def test_a_table_is_learned_and_a_member_opens_the_model(run: Run) -> None:
    run(EXAMPLES / "sklearn-tabular", **{"num-server-rounds": 2})
    model = run.model("tabular.flhe")
    _, _, rows, labels = run.task.load_data(0, 1)
    found = rows @ model["coef"][0] + model["intercept"][0] > 0
    assert (found == labels).mean() > 0.85


def test_only_adapters_travel_and_they_help_on_notes_that_no_site_has(run: Run) -> None:
    steps = {"base-steps": 20, "local-steps": 10}
    run(EXAMPLES / "lora-adapters", **{"num-server-rounds": 2, **steps})
    found = run.model("adapters.flhe")
    base = run.task.base(20)
    assert {name.rpartition(".")[2] for name in found} == {"b"}
    assert sum(map(np.size, found.values())) < sum(p.numel() for p in base.parameters()) / 10
    losses = []
    for scale in (0, 1):
        state = {name: torch.tensor(value * scale) for name, value in found.items()}
        base.load_state_dict(state, strict=False)
        losses.append(run.task.fit(base, run.task.notes(9), steps=20, lr=0.0))
    assert losses[1] < 0.95 * losses[0]


def test_hospitals_pay_from_their_budgets_and_refuse_when_they_are_spent(run: Run) -> None:
    budget = {"flhe-max-epsilon": 0.85, "flhe-delta": 1e-4, "flhe-durable": True}
    run(EXAMPLES / "dp-hospitals", budget, **{"num-server-rounds": 2})
    for number in range(5):
        ledger = budget_of(run.node(number, **budget)).ledger()
        assert ledger.counts == {Mechanism(1.5, 0.1): 2}
    assert {array.shape for array in run.model("private.flhe").values()} == {(2, 30), (2,)}
    with pytest.raises(FlheError, match="privacy budget"):
        run(EXAMPLES / "dp-hospitals", budget, **{"num-server-rounds": 2})


def test_masks_of_ones_own_come_off(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(EXAMPLES / "own-strategy", **{"num-server-rounds": 3})
    assert float(capsys.readouterr().out.rpartition("off by ")[2]) < 0.1


def test_statistics_are_those_of_the_pooled_patients(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = "count,mean,variance,covariance,histogram,below,contingency,kaplan-meier"
    run(EXAMPLES / "analytics", {"flhe-queries": listed})
    lines = [line for line in capsys.readouterr().out.splitlines() if " difference " in line]
    assert len(lines) == 8
    assert max(float(line.rpartition(" difference ")[2]) for line in lines) < 1e-6
    assert (run.place / "survival.png").read_bytes().startswith(b"\x89PNG")


def test_trees_are_those_of_the_pooled_rows(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(EXAMPLES / "boosted-trees", {"flhe-queries": "gradients"}, trees=2)
    out = capsys.readouterr().out
    assert "trees: the same, to the last bit" in out
    assert "difference 0" in out

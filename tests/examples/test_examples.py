"""Every example does what its README says."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.source import ROOT
from tests.strategies.conftest import quick
from tests.strategies.puppets import Puppets

__all__ = ["quick"]
pytestmark = pytest.mark.usefixtures("quick")

EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").iterdir()) if path.is_dir()}


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Any]:
    """Runs an example on five nodes with some of its settings changed; returns what it prints."""
    before = set(sys.modules)

    def run_it(name: str, queries: str, **changed: Any) -> str:
        said = tomllib.loads((EXAMPLES[name] / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        parts = {kind: place.partition(":")[0] for kind, place in said["components"].items()}
        monkeypatch.syspath_prepend(str(EXAMPLES[name]))
        client, server = (import_module(parts[kind]) for kind in ("clientapp", "serverapp"))
        with Puppets(tmp_path, 5, client.app, config=lambda _: {"flhe-queries": queries}) as grid:
            context = SimpleNamespace(run_config={**said["config"], **changed})
            server.main(grid, context)
        return capsys.readouterr().out

    yield run_it
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in ("hospitals", "boosting", "masked"):
            del sys.modules[module]


def test_statistics_are_those_of_the_pooled_patients(run: Any, tmp_path: Path) -> None:
    listed = "count,mean,variance,covariance,histogram,below,contingency,kaplan-meier"
    out = run("analytics", listed, plot=str(tmp_path / "curves.png"))
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    differences = [float(row[3]) for row in rows if row[0].strip() and row[3].strip()]
    assert len(differences) == 10
    assert max(differences) < 1e-6
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_trees_are_those_of_the_pooled_rows(run: Any) -> None:
    out = run("boosted-trees", "gradients", trees=2)
    assert "trees: the same, to the last bit" in out
    assert "difference 0" in out


def test_masks_of_ones_own_come_off(run: Any) -> None:
    out = run("own-masks", "", rounds=3)
    assert float(out.rpartition("off by ")[2]) < 0.1


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_small_and_says_how_it_is_run(name: str) -> None:
    modules = list(EXAMPLES[name].rglob("*.py"))
    assert sum(len(module.read_text().splitlines()) for module in modules) <= 300
    assert f"flwr run examples/{name} --stream" in (EXAMPLES[name] / "README.md").read_text()

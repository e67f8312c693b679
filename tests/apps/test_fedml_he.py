"""FedML-HE with the real app: selected, it learns what plain FedAvg does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord

from flhe.strategies.report import Reporter, RoundReport
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_app import client_app, server_app
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model

pytest.importorskip("tenseal")

NODES, ROUNDS = 3, 2
TASK = task_named("digits")


def run(
    tmp: Path, settings: Settings, reporter: Reporter | None = None
) -> tuple[list[RoundReport], list[Path], list[bytes]]:
    homes = [tmp / f"node-{i}" for i in range(NODES)]
    wire: list[bytes] = []
    grid = InProcessGrid(
        client_app.app,
        NODES,
        run_config=settings.to_config(),
        node_config=lambda i: {
            "flhe-home": str(homes[i]),
            "flhe-trust": "first-use",
            "flhe-schemes": settings.scheme,
            "flhe-min-select": 0.1,
        },
        tap=lambda direction, _node, content: wire.append(content),
    )
    reports: list[RoundReport] = []
    strategy = server_app.make_strategy(settings, TASK, reporter or Reporter(None))
    hook = "_on_round" if settings.scheme == "plain" else "on_round"
    setattr(strategy, hook, reports.append)
    initial = ArrayRecord(new_model(TASK, settings.seed).state_dict())
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS, timeout=120)
    grid.close()
    return reports, homes, wire


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tmp = tmp_path_factory.mktemp("fedml")
    how: dict[str, Any] = {"nodes": NODES, "num_rounds": ROUNDS}
    return {
        "plain": run(tmp / "plain", Settings("plain", **how)),
        "selected": run(tmp / "selected", Settings("fedml-he", select=0.1, **how)),
    }


def test_it_learns_what_plain_fedavg_does(runs: dict[str, Any]) -> None:
    plain, selected = runs["plain"][0], runs["selected"][0]
    assert len(selected) == len(plain) + 1  # a round for the map
    assert plain[-1].accuracy is not None
    assert selected[-1].accuracy is not None
    assert abs(plain[-1].accuracy - selected[-1].accuracy) <= 0.02
    assert selected[0].accuracy == pytest.approx(0.1, abs=0.1)
    assert selected[1].accuracy == pytest.approx(plain[0].accuracy, abs=0.02)


def test_a_tenth_is_encrypted_and_less_travels(runs: dict[str, Any]) -> None:
    plain, (reports, homes, wire) = runs["plain"][0], runs["selected"]
    assert reports[1].bytes_up < 0.8 * plain[0].bytes_up
    models = [Model.from_bytes(next(h.glob("runs/*/model")).read_bytes()) for h in homes]
    assert len({m.fingerprint() for m in models}) == 1
    (model, *_) = models
    assert model.mask is not None
    assert model.mask.count == -(-model.layout.floats // 10)
    # Nobody's whole array is on the wire, not as floats: what is in clear is quantized.
    for array in (a.tobytes() for a in model.masters.values() if a.nbytes >= 64):
        assert not any(array[:64] in content for content in wire)


def test_a_run_says_what_it_showed(tmp_path: Path) -> None:
    """The report that the command line reads has the warning about what is in clear."""
    report = tmp_path / "report"
    settings = Settings(
        "fedml-he", nodes=NODES, num_rounds=1, local_epochs=1, select=0.5, rule="random",
        noise=0.01, report=str(report),
    )  # fmt: skip
    homes = [tmp_path / f"n{i}" for i in range(NODES)]
    grid = InProcessGrid(
        client_app.app,
        NODES,
        run_config=settings.to_config(),
        node_config=lambda i: {
            "flhe-home": str(homes[i]),
            "flhe-trust": "first-use",
            "flhe-min-select": 0.5,
            "flhe-select-rules": "random",
        },
    )
    server_app.run(grid, settings, Reporter(report))
    grid.close()
    events = [json.loads(line) for line in report.read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "warning"]
    assert "not private in any accounted sense" in told["text"]

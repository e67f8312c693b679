"""FedML-HE with the real app: selected, it learns what plain FedAvg does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flhe.strategies.overhead import EVALUATE
from flhe.strategies.report import RoundReport
from flhe_app.settings import Settings
from tests.apps.federation import Federated, serve

pytest.importorskip("tenseal")

NODES, ROUNDS = 3, 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Federated]:
    tmp = tmp_path_factory.mktemp("fedml")
    how: dict[str, Any] = {"nodes": NODES, "num_rounds": ROUNDS}
    selects = Settings("fedml-he", select=0.1, **how)
    return {
        "plain": Federated(tmp, Settings("plain", **how)),
        "selected": Federated(tmp, selects, {"flhe-min-select": 0.1}),
    }


def test_it_learns_what_plain_fedavg_does(runs: dict[str, Federated]) -> None:
    plain, selected = runs["plain"], runs["selected"]
    assert len(selected.reports) == len(plain.reports) + 1  # a round for the map
    assert abs(plain.accuracy - selected.accuracy) <= 0.02
    assert selected.reports[0].accuracy == pytest.approx(0.1, abs=0.1)
    assert selected.reports[1].accuracy == pytest.approx(plain.reports[0].accuracy, abs=0.02)


def uploaded(report: RoundReport) -> int:
    """Bytes of a round's updates, without those of its evaluation."""
    return sum(phase.bytes_up for phase in report.phases if phase.name != EVALUATE)


def test_a_tenth_is_encrypted_and_less_travels(runs: dict[str, Federated]) -> None:
    selected = runs["selected"]
    ours, theirs = (uploaded(runs[name].reports[-1]) for name in ("selected", "plain"))
    assert ours < 0.7 * theirs
    models = selected.models()
    assert len({m.fingerprint() for m in models}) == 1
    (model, *_) = models
    assert model.mask is not None
    assert model.mask.count == -(-model.layout.floats // 10)
    # Nobody's whole array is on the wire, not as floats: what is in clear is quantized.
    for array in (a.tobytes() for a in model.masters.values() if a.nbytes >= 64):
        assert not any(array[:64] in content for content in selected.wire)


def test_a_run_says_what_it_showed(tmp_path: Path) -> None:
    """The report that the command line reads has the warning about what is in clear."""
    report = tmp_path / "report"
    part: dict[str, Any] = {"select": 0.5, "rule": "random", "noise": 0.01}
    paths = {"report": str(report), "sealed_model": str(tmp_path / "model")}
    settings = Settings("fedml-he", nodes=NODES, num_rounds=1, **part, **paths)
    serve(settings, tmp_path, {"flhe-min-select": 0.5, "flhe-select-rules": "random"})
    events = [json.loads(line) for line in report.read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "warning"]
    assert "not private in any accounted sense" in told["text"]

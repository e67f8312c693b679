"""FedML-HE with the real app: a tenth is encrypted, and what is in clear is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flhe_app.settings import Settings
from tests.apps.federation import Federated, serve

pytest.importorskip("tenseal")

HOW: dict[str, Any] = {"nodes": 3, "num_rounds": 1}


def test_a_tenth_is_encrypted_and_no_floats_travel(tmp_path: Path) -> None:
    settings = Settings("fedml-he", select=0.1, **HOW)
    selected = Federated(tmp_path, settings, {"flhe-min-select": 0.1})
    first, last = selected.reports  # the first round is for the map
    assert first.accuracy == pytest.approx(0.1, abs=0.1)
    assert last.accuracy is not None
    assert last.accuracy > 0.5
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
    settings = Settings("fedml-he", **HOW, **part, **paths)
    serve(settings, tmp_path, {"flhe-min-select": 0.5, "flhe-select-rules": "random"})
    events = [json.loads(line) for line in report.read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "warning"]
    assert "not private in any accounted sense" in told["text"]

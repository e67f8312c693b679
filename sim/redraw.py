"""Draw the pictures of `docs/` anew from the numbers beside them, as `flhe tables --redraw` does.

It measures nothing. The reconstructed images of `flhe audit` are in no file, so their picture is
drawn by the audit alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flhe_app import style


def redraw(docs: Path, out: Path) -> list[Path]:
    """Draw all into `out`; returns the pictures."""
    from flhe_lab.audit import private_report
    from flhe_lab.audit import report as audit
    from flhe_lab.crowd import report as crowd
    from flhe_lab.crowd.found import Found
    from flhe_lab.privacy import report as privacy

    def data(name: str) -> Any:
        return json.loads((docs / f"{name}.json").read_text(encoding="utf-8"))

    names = ("crowds", "privacy_audit_curve", "what_epsilon_buys", "privacy_results")
    crowds, curve, epsilon, private = paths = [out / f"{name}.svg" for name in names]
    crowd.plot([Found.of(run) for run in data("crowds")["runs"]], crowds)
    audited = data("privacy_audit")
    audit.curve(audited["points"], audited["setting"]["shares"], curve)
    private_report.draw(data("what_epsilon_buys"), epsilon)
    privacy.draw(privacy.read_runs(data("privacy_results")["accuracies"]), private)
    return [
        *paths,
        _survival(docs.parent / "examples" / "analytics", out / "analytics-survival.svg"),
    ]


def _survival(example: Path, path: Path) -> Path:
    """Draw the example's curves: its sums are those of its pooled patients."""
    import matplotlib as mpl
    import numpy as np

    sys.path.insert(0, str(example))
    try:
        from hospitals import server_app, task  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    tables = [task.patients(hospital) for hospital in range(5)]
    pooled = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
    asked, _ = task.ASKED["survival"]
    with mpl.rc_context(style.settings()):
        server_app.draw(asked.result(task.SCHEMA, asked.answer(task.SCHEMA, pooled)), path)
    path.write_text(style.adapted(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path

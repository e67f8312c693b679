"""Draw the pictures of `docs/` anew from the numbers beside them, as `flhe tables --redraw` does.

It measures nothing. The reconstructed images of `flhe audit` and the curves of the analytics example
are in no file, so those draw their pictures themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
    return paths

"""What `flhe audit` does; `flhe bench` is in `flhe.sim.bench.command`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from flhe.packages import require
from flhe.sim.bench.table import progress


def privacy_audit(out: Path, *, quick: bool, **how: Any) -> None:
    """Attack what a server sees: a picture, a curve, their data, and what was found in words."""
    require("`flhe audit`", "apps", ("torch", "matplotlib", "sklearn"))
    from flhe.sim import privacy_audit as auditing

    with progress(Console(stderr=True)) as advance:
        found = auditing.run(out, quick=quick, progress=advance, **how)
    Console().print(auditing.table(found))
    for line in auditing.words(found):
        Console().print(line, highlight=False)
    Console().print(f"Picture: {out}", highlight=False, soft_wrap=True)

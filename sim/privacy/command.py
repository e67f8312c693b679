"""`flhe compare-privacy`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare_privacy(
    out: Annotated[Path, typer.Argument(metavar="FILE.md", help="The page; beside it go others.")],
    quick: Annotated[bool, typer.Option("--quick", help="Three steps a run: a minute.")] = False,
) -> None:
    """Compare DP-SGD across sites with Opacus on pooled data, at equal epsilon (about an hour)."""
    from rich.console import Console

    from flhe.packages import require
    from flhe_lab.bench.table import progress

    require("`flhe compare-privacy`", "apps", ("torch", "matplotlib", "sklearn"))
    require("`flhe compare-privacy`", "peers", ("opacus",))
    from flhe_lab.privacy import report

    with progress(Console(stderr=True)) as advance:
        report.run(out, advance, quick=quick)

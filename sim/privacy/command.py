"""`flhe compare-privacy`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer


def compare_privacy(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="The page; its picture and data go beside it.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Three steps a run: one minute.")] = False,
) -> Answer:
    """Compare DP-SGD across sites with Opacus on pooled data, at equal epsilon (about an hour)."""
    from flhe.packages import require
    from flhe_lab.bench.table import progress

    require("`flhe compare-privacy`", "apps", ("torch", "matplotlib", "sklearn"))
    require("`flhe compare-privacy`", "peers", ("opacus",))
    from flhe_lab.privacy import report

    with progress() as advance:
        report.run(out, advance, quick=quick)
    return Answer({"page": out, "data": out.with_suffix(".json")}, f"Page: {out}")

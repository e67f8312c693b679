"""`flhe audit-server`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer


def audit_server(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="The page; its data goes beside it.")
    ] = Path("what_a_server_learns.md"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small model, once: half a minute.")
    ] = False,
) -> Answer:
    """Measure what a server learns of one site, if it listens and if it lies."""
    from rich.table import Table

    from flhe_lab.bench.table import progress
    from flhe_lab.server_audit import report

    with progress() as advance:
        found = report.run(out, quick=quick, progress=advance)
    heading, *lines = report.rows(found)
    table = Table(*heading, title="what a server learns of one site")
    for line in lines:
        table.add_row(*line)
    return Answer(report.to_data(found, f"{report.COMMAND} {out}"), table, f"Page: {out}")

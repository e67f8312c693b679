"""`flhe audit`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE.png", help="The picture; its data and a curve go beside it."),
    ] = Path("privacy_audit.png"),
    select: Annotated[
        float, typer.Option("--select", help="Share encrypted in the picture.")
    ] = 0.1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and weaker attacks: one to three minutes.")
    ] = False,
    noise: Annotated[
        float, typer.Option(help="Scale of Laplace noise on what is in clear; 0: none.")
    ] = 0.0,
    privacy: Annotated[
        bool,
        typer.Option("--privacy", help="Attack differential privacy instead: what epsilon buys."),
    ] = False,
) -> None:
    """Attack what a server sees of an update, and show what comes of it (about 10 minutes)."""
    from rich.console import Console

    from flhe.errors import ConfigError
    from flhe.packages import require
    from flhe_lab.bench.table import progress

    require("`flhe audit`", "apps", ("torch", "matplotlib", "sklearn"))
    if privacy:
        if (select, noise) != (0.1, 0.0):
            raise ConfigError(
                "--select and --noise are for the audit of what travels in clear: leave them out with "
                "--privacy"
            )
        from flhe_lab.audit import private_report

        with progress(Console(stderr=True)) as advance:
            page = private_report.run(out, quick=quick, progress=advance)
        print(page.read_text(encoding="utf-8"))
        return
    from flhe_lab.audit import report

    with progress(Console(stderr=True)) as advance:
        found = report.run(out, quick=quick, select=select, noise=noise, progress=advance)
    console = Console()
    console.print(report.table(found))
    for line in report.words(found):
        console.print(line, highlight=False)
    console.print(f"Picture: {out}", highlight=False, soft_wrap=True)

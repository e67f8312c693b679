"""`flhe audit`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer, Exact


def audit(
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE.svg", help="The picture; its data and a curve go beside it."),
    ] = Path("privacy_audit.svg"),
    select: Annotated[
        float, typer.Option("--select", help="Encrypted share in the picture.")
    ] = 0.1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and weaker attacks: one to three minutes.")
    ] = False,
    noise: Annotated[
        float, typer.Option(help="Scale of Laplace noise on values in clear; 0: none.")
    ] = 0.0,
    privacy: Annotated[
        bool,
        typer.Option(
            "--privacy", help="Attack differential privacy instead: measure the effect of epsilon."
        ),
    ] = False,
) -> Answer:
    """Attack the part of an update that a server sees, and show the result (about 10 minutes)."""
    from flhe.errors import ConfigError
    from flhe.packages import require
    from flhe_lab.bench.table import progress

    require("`flhe audit`", "apps", ("torch", "matplotlib", "sklearn"))
    if privacy:
        if (select, noise) != (0.1, 0.0):
            raise ConfigError(
                "--select and --noise are for values in clear: leave them out with --privacy"
            )
        from flhe_lab.audit import private_report

        with progress() as advance:
            page = private_report.run(out, quick=quick, progress=advance)
        text = page.read_text(encoding="utf-8")
        return Answer({"page": page, "data": out.with_suffix(".json")}, Exact(text))
    from flhe_lab.audit import report

    with progress() as advance:
        found = report.run(out, quick=quick, select=select, noise=noise, progress=advance)
    words = "\n".join(report.words(found))
    data = report.to_data(found, f"{report.COMMAND} {out}")
    return Answer(data, report.table(found), words, f"Picture: {out}")

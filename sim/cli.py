"""What the lab adds to `flhe ...`, through the entry point `flhe.commands`.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe_lab.advise.command import advise
from flhe_lab.audit.command import audit
from flhe_lab.bench.command import bench
from flhe_lab.crowd.command import crowd
from flhe_lab.rehearsal.command import rehearse
from flhe_lab.server_audit.command import audit_server

app = typer.Typer()
app.command()(bench)


@app.command()
def tables(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]...",
            help="Tables and figures, or papers: see --list. All unless said.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="Everything, about an hour, to be stopped and gone on with at will; or in five "
            "minutes what small samples tell.",
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where results.md goes, and results/ with all it shows."),
    ] = Path(),
    data_dir: Annotated[
        str,
        typer.Option(
            envvar="FLHE_DATA_DIR",
            help="Where data sets lie; learning curves that have none are left out.",
        ),
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the sections, and measure nothing.")
    ] = False,
) -> None:
    """Measure the papers' tables and figures on this machine, beside what one might use instead."""
    from flhe_lab.tables import command

    command.tables(
        sections or (), full=full, out=out, fresh=fresh, data_dir=data_dir, listing=listing
    )


@app.command()
def corrections(
    name: Annotated[str, typer.Argument(help="Which proof to run; none lists them.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/corrections.md.")] = False,
) -> None:
    """Show what the papers get wrong or leave open, each with a proof that runs."""
    from flhe_lab.papers.corrections.listing import corrections

    corrections(name, every=every, as_page=page)


for _command in (advise, audit, audit_server, rehearse, crowd):
    app.command()(_command)

"""What the lab adds to `flhe ...`, through the entry point `flhe.commands`.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flhe_lab.advise.command import advise
from flhe_lab.audit.command import audit
from flhe_lab.bench.command import bench
from flhe_lab.crowd.command import crowd
from flhe_lab.privacy.command import compare_privacy
from flhe_lab.rehearsal.command import rehearse
from flhe_lab.server_audit.command import audit_server
from flhe_lab.tables.command import tables


def corrections(
    name: Annotated[str, typer.Argument(help="Which proof to run; none lists them.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/corrections.md.")] = False,
) -> None:
    """Show what the papers get wrong or leave open, each with a proof that runs."""
    from flhe_lab.papers.corrections import listing

    listing.corrections(name, every=every, as_page=page)


app = typer.Typer()
_COMMANDS = (
    bench,
    tables,
    corrections,
    advise,
    audit,
    audit_server,
    compare_privacy,
    rehearse,
    crowd,
)
for _command in _COMMANDS:
    app.command()(_command)

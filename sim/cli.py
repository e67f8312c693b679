"""Commands of the lab, added to `flhe ...` through the entry point `flhe.commands`.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flhe.answer import Answer
from flhe.command_group import RESEARCH, SIMULATION, examples
from flhe_lab.advise.command import advise
from flhe_lab.audit.command import audit
from flhe_lab.bench.command import bench
from flhe_lab.crowd.command import crowd
from flhe_lab.privacy.command import compare_privacy
from flhe_lab.rehearsal.command import rehearse
from flhe_lab.server_audit.command import audit_server
from flhe_lab.tables.command import tables


def corrections(
    name: Annotated[str, typer.Argument(help="The proof to run; without one, list them.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/corrections.md.")] = False,
) -> Answer:
    """Show errors and gaps of the papers, each with a proof that runs."""
    from flhe_lab.papers.corrections import listing

    return listing.corrections(name, every=every, as_page=page)


app = typer.Typer()
for _command, _panel, *_examples in (
    (
        advise,
        SIMULATION,
        "flhe advise --params 25M --clients 12 --uplink 40Mbps",
        "flhe advise --params 1M --clients 10 --wan batchcrypt --dropout 0.1 --json",
    ),
    (rehearse, SIMULATION, "flhe rehearse --scheme sash --rounds 2"),
    (crowd, SIMULATION, "flhe crowd --clients 50,100 --figure crowds.svg"),
    (
        bench,
        RESEARCH,
        "flhe bench flashe sash --values 10000 --repeats 3",
        "flhe bench --round flashe --cohort 3 --images 50 --repeats 1",
        "flhe bench --round --deployed --values 100000",
        "flhe bench --memory --values 100000000",
    ),
    (tables, RESEARCH, "flhe tables --list", "flhe tables flashe-table-2 --out measured"),
    (corrections, RESEARCH, "flhe corrections", "flhe corrections esafl-shift"),
    (audit, RESEARCH, "flhe audit audit.svg --quick"),
    (audit_server, RESEARCH, "flhe audit-server learns.md --quick"),
    (compare_privacy, RESEARCH, "flhe compare-privacy privacy.md --quick"),
):
    app.command(rich_help_panel=_panel, epilog=examples(*_examples))(_command)

"""Commands of the lab, added to `flhe ...` through the entry point `flhe.commands`.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer, Exact
from flhe.command_group import RESEARCH, SIMULATION, examples, option
from flhe.errors import ConfigError
from flhe.packages import require
from flhe_lab.advise.command import advise
from flhe_lab.bench.command import bench
from flhe_lab.crowd.command import crowd
from flhe_lab.rehearsal.command import rehearse
from flhe_lab.tables.command import tables


def corrections(
    name: Annotated[str, typer.Argument(help="The proof to run; without one, list them.")] = "",
    page: Annotated[bool, option("Print docs/corrections.md.", None, "--page")] = False,
) -> Answer:
    """Show errors and gaps of the papers, each with a proof that runs."""
    from flhe_lab.papers.corrections import listing

    return listing.corrections(name, as_page=page)


def audit(
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE.svg", help="The picture; its data and a curve go beside it."),
    ] = Path("privacy_audit.svg"),
    quick: Annotated[
        bool, option("Fewer images and weaker attacks: one to three minutes.", None, "--quick")
    ] = False,
    noise: Annotated[float, option("Scale of Laplace noise on values in clear; 0: none.")] = 0.0,
    privacy: Annotated[
        bool,
        option(
            "Attack differential privacy instead: measure the effect of epsilon.", None, "--privacy"
        ),
    ] = False,
) -> Answer:
    """Attack the part of an update that a server sees, and show the result (about 10 minutes)."""
    from flhe_lab.bench.table import progress

    require("`flhe audit`", "apps", ("torch", "matplotlib", "sklearn"))
    if privacy:
        if noise:
            raise ConfigError("--noise is for values in clear: leave it out with --privacy")
        from flhe_lab.audit import private_report

        with progress() as advance:
            page = private_report.run(out, quick=quick, progress=advance)
        text = page.read_text(encoding="utf-8")
        return Answer({"page": page, "data": out.with_suffix(".json")}, Exact(text))
    from flhe_lab.audit import report

    with progress() as advance:
        found = report.run(out, quick=quick, noise=noise, progress=advance)
    words = "\n".join(report.words(found))
    data = report.to_data(found, f"{report.COMMAND} {out}")
    return Answer(data, report.table(found), words, f"Picture: {out}")


def audit_server(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="The page; its data goes beside it.")
    ] = Path("what_a_server_learns.md"),
    quick: Annotated[bool, option("A small model, once: half a minute.", None, "--quick")] = False,
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


def compare_privacy(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="The page; its picture and data go beside it.")
    ],
    quick: Annotated[bool, option("Three steps a run: one minute.", None, "--quick")] = False,
) -> Answer:
    """Compare DP-SGD across sites with Opacus on pooled data, at equal epsilon (about an hour)."""
    from flhe_lab.bench.table import progress

    require("`flhe compare-privacy`", "apps", ("torch", "matplotlib", "sklearn"))
    require("`flhe compare-privacy`", "peers", ("opacus",))
    from flhe_lab.privacy import report

    with progress() as advance:
        report.run(out, advance, quick=quick)
    return Answer({"page": out, "data": out.with_suffix(".json")}, f"Page: {out}")


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
        "flhe bench --round flashe --task digits --cohort 3 --repeats 1",
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

"""`flhe bench`: schemes' encryption of one update, timed."""

from __future__ import annotations

from typing import Annotated

import typer

from flhe.answer import Answer


def bench(
    schemes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCHEME]...", help="Schemes; default: flashe and plain."),
    ] = None,
    values: Annotated[int, typer.Option(help="Values in one update.")] = 1_200_000,
    cohort: Annotated[int, typer.Option(help="Clients.")] = 10,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[
        int, typer.Option(help="Counted repeats, after a first one that does not count.")
    ] = 20,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time TenSEAL and python-paillier too; the latter from a sample.",
        ),
    ] = False,
) -> Answer:
    """Time the encryption of one update, beside hard limits and other libraries."""
    from flhe_lab.bench import table, times
    from flhe_lab.bench.contender import Setting

    setting = Setting(values, cohort, dropouts, threads)
    names = schemes or ("flashe", "plain")
    with table.progress() as advance:
        rows = times.bench(names, setting, repeats=repeats, with_peers=peers, progress=advance)
    return Answer(times.to_data(rows, setting), table.table(rows, setting))

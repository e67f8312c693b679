"""`flhe bench`: schemes' encryption of one update, timed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flhe.json_option import JsonFile, console, write_json


def bench(
    schemes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCHEME]...", help="Which schemes; flashe and plain unless said."),
    ] = None,
    values: Annotated[int, typer.Option(help="Values in one update.")] = 1_200_000,
    cohort: Annotated[int, typer.Option(help="Clients.")] = 10,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[int, typer.Option(help="Counted repeats, after one that warms up.")] = 20,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time TenSEAL's CKKS and BFV and python-paillier beside it, the last projected from a "
            "sample.",
        ),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Time encryption of one update beside what nobody can beat and what else one might use."""
    from rich.console import Console

    from flhe_lab.bench import table, times
    from flhe_lab.bench.contender import Setting

    setting = Setting(values, cohort, dropouts, threads)
    names = schemes or ("flashe", "plain")
    with table.progress(Console(stderr=True)) as advance:
        rows = times.bench(names, setting, repeats=repeats, with_peers=peers, progress=advance)
    if json_file is not None:
        write_json(json_file, json.dumps(times.to_data(rows, setting), indent=2))
    out = console(json_file)
    out.print(table.table(rows, setting))

"""`flhe crowd`: SASH among up to a thousand virtual clients on Ray, by Flower's simulation engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flhe.errors import ConfigError
from flhe.json_option import STDOUT, JsonFile, console, write_json

if TYPE_CHECKING:
    from flhe_lab.crowd.found import Found

FORMAT, VERSION = "flhe clients on ray", 1
CLIENTS = "50,100,200,500,1000"
TIMEOUT_S = 3600.0
"""Longest time for one run."""


def crowd(
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = CLIENTS,
    values: Annotated[int, typer.Option(help="Values in the model.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 2,
    drops: Annotated[float, typer.Option(help="Share of clients that drop out of a round.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Longest time for one run, s.")] = TIMEOUT_S,
    json_file: JsonFile = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Draw them into FILE, a .png.")
    ] = None,
) -> None:
    """Run SASH with more and more virtual clients on Ray, and project ten times as many."""
    from rich.console import Console

    from flhe_lab.bench import figures
    from flhe_lab.bench.host import machine
    from flhe_lab.bench.table import progress
    from flhe_lab.crowd.found import Asked
    from flhe_lab.crowd.report import plot, table
    from flhe_lab.crowd.run import RayRun

    if figure is not None:
        figures.check(figure)
    every = [Asked(n, values, rounds, drops=round(drops * n)) for n in _numbers(clients)]
    runs: list[Found] = []
    for asked in every:
        with progress(Console(stderr=True)) as advance:
            runs.append(RayRun(asked, timeout, advance).run())
        # Standard output takes one document, at the end.
        if json_file is not None and (json_file != STDOUT or asked is every[-1]):
            write_json(json_file, json.dumps(to_data(runs, machine()), indent=1))
    if figure is not None:
        plot(runs, figure)
    console(json_file, 130).print(table(runs))


def to_data(runs: Sequence[Found], where: Mapping[str, Any]) -> dict[str, Any]:
    """Return runs, by ascending clients, and their laws as JSON values; `where` is the machine."""
    from flhe_lab.crowd.report import FURTHER, QUANTITIES

    laws = []
    for quantity in QUANTITIES:
        law = quantity.law(runs)
        if law is not None:
            further = FURTHER * runs[-1].asked.clients
            said = {"quantity": quantity.name, "unit": quantity.unit}
            beyond = {"clients": further, "projected": law.at(further)}
            laws.append({"kind": "SASH", **said, **asdict(law), "law": law.name, **beyond})
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": dict(where),
        "runs": [asdict(run) for run in runs],
        "laws": laws,
    }


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.replace(",", " ").split()})
    except ValueError:
        raise ConfigError(f"--clients {text!r}: name numbers with commas, as in 50,100") from None

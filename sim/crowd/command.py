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
    from flhe_lab.crowd.found import Asked, Found

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
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Run nothing: project and draw what is in --json again."),
    ] = False,
) -> None:
    """Run SASH with more and more virtual clients on Ray, and project ten times as many."""
    from flhe_lab.bench import figures
    from flhe_lab.crowd.found import Asked
    from flhe_lab.crowd.report import plot, table

    if redraw and json_file is None:
        raise ConfigError("--redraw needs --json: the file that holds the runs")
    if figure is not None:
        figures.check(figure)

    def keep(runs: Sequence[Found], where: Mapping[str, Any] | None = None) -> None:
        if json_file is not None:
            write_json(json_file, json.dumps(to_data(runs, where), indent=1))

    if redraw and json_file is not None:
        runs, where = stored(json_file)
    else:
        asked = [Asked(n, values, rounds, drops=round(drops * n)) for n in _numbers(clients)]
        runs, where = [], None
        for each in asked:
            runs.append(_run(each, timeout))
            if json_file != STDOUT:  # which takes one document, at the end
                keep(runs)
    keep(runs, where)
    if figure is not None:
        plot(runs, figure)
    console(json_file, 130).print(table(sorted(runs, key=lambda run: run.asked.clients)))


def _run(asked: Asked, timeout: float) -> Found:
    """Run one federation, under a bar of its progress."""
    from rich.console import Console

    from flhe_lab.bench.table import progress
    from flhe_lab.crowd.run import RayRun

    with progress(Console(stderr=True)) as advance:
        return RayRun(asked, timeout, lambda n, what: advance(n, asked.clients, what)).run()


def to_data(runs: Sequence[Found], where: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return runs and laws as JSON values; `where` is the machine, by default this one."""
    from flhe_lab.bench.host import machine
    from flhe_lab.crowd.report import FURTHER, QUANTITIES

    laws = []
    members = sorted(runs, key=lambda run: run.asked.clients)
    for quantity in QUANTITIES:
        law = quantity.law(members)
        if law is not None:
            further = FURTHER * members[-1].asked.clients
            said = {"quantity": quantity.name, "unit": quantity.unit}
            beyond = {"clients": further, "projected": law.at(further)}
            laws.append({"kind": "SASH", **said, **asdict(law), "law": law.name, **beyond})
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine() if where is None else dict(where),
        "runs": [asdict(run) for run in runs],
        "laws": laws,
    }


def stored(path: Path) -> tuple[list[Found], dict[str, Any]]:
    """Return the runs in a file that `to_data` made, and the machine that made them.

    Raises ConfigError: the file cannot be read, or is something else.
    """
    from flhe_lab.crowd.found import Asked, Found

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError
        runs = [Found(**{**run, "asked": Asked(**run["asked"])}) for run in data["runs"]]
        return runs, dict(data["machine"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path}: holds no runs of version {VERSION}; name another file with --json"
        ) from None


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.replace(",", " ").split()})
    except ValueError:
        raise ConfigError(f"--clients {text!r}: name numbers with commas, as in 50,100") from None

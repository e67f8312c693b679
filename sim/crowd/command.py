"""`flhe crowd`: SASH among up to a thousand virtual clients on Ray, by Flower's simulation engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flhe.answer import Answer, notes
from flhe.command_group import option
from flhe.errors import ConfigError, FlheError

if TYPE_CHECKING:
    from flhe_lab.crowd.found import Found

FORMAT, VERSION = "flhe clients on ray", 1
CLIENTS = "50,100,200,500,1000"
TIMEOUT_S = 3600.0
"""Longest time for one run."""


def crowd(
    clients: Annotated[str, option("Numbers of clients, separated by commas.")] = CLIENTS,
    values: Annotated[int, option("Values in the model.")] = 10_000,
    rounds: Annotated[int, option("Rounds of each run.")] = 2,
    drops: Annotated[float, option("Share of clients that drop out of a round.")] = 0.0,
    timeout: Annotated[float, option("Maximum time of one run in seconds.")] = TIMEOUT_S,
    figure: Annotated[
        Path | None,
        option("Draw the results into FILE, a .svg.", "FILE", "--figure"),
    ] = None,
) -> Answer:
    """Run SASH with more and more virtual clients on Ray, and project ten times as many."""
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
    failed = False
    try:
        for asked in every:
            with progress() as advance:
                runs.append(RayRun(asked, timeout, advance).run())
    except FlheError as error:
        if not runs:
            raise
        failed = True  # what earlier runs found took long
        notes().print(f"flhe: {error}", markup=False, highlight=False, soft_wrap=True)
    if figure is not None:
        plot(runs, figure)
    return Answer(to_data(runs, machine()), table(runs), failed=failed)


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

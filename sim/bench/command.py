"""`flhe bench`: what is measured by name, and the command around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flhe.errors import ConfigError
from flhe.json_option import JsonFile, console, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flhe_lab.bench.turns import Progress


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user said; None where a measurement has its own default."""

    schemes: tuple[str, ...] = ()
    values: int | None = None
    cohort: int | None = None
    dropouts: int = 0
    threads: int = 1
    repeats: int | None = None
    peers: bool = False
    top_k: float | None = None
    select: float | None = None

    def given(self, **names: str) -> dict[str, Any]:
        """What was said of the options `names`: parameter=option."""
        found = {parameter: getattr(self, option) for parameter, option in names.items()}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is printed, in so many columns or as many as there are, and written as JSON."""

    tables: Sequence[RenderableType]
    data: dict[str, Any]
    width: int | None = None


def _times(asked: Asked, progress: Progress) -> Shown:
    from flhe_lab.bench.contender import Setting
    from flhe_lab.bench.table import notes, table
    from flhe_lab.bench.times import bench, to_data

    setting = Setting(
        dropouts=asked.dropouts,
        threads=asked.threads,
        **asked.given(values="values", cohort="cohort"),
    )
    rows = bench(
        asked.schemes or ("flashe", "plain"),
        setting,
        with_peers=asked.peers,
        top_k=asked.top_k,
        select=asked.select,
        progress=progress,
        **asked.given(repeats="repeats"),
    )
    return Shown([table(rows), *notes(rows)], to_data(rows))


def _memory(asked: Asked, progress: Progress) -> Shown:
    from flhe_app import launch
    from flhe_lab.bench import memory

    with launch.signals():
        sizes = asked.given(values="values", nodes="cohort", rounds="repeats")
        rows = memory.memory(**sizes, progress=progress)
    return Shown([memory.table(rows)], memory.to_data(rows))


WHAT: dict[str, Callable[[Asked, Progress], Shown]] = {
    "memory": _memory,
}
"""Name -> what is measured in place of schemes' encryption of one update."""


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help="Schemes, or memory.",
        ),
    ] = None,
    values: Annotated[
        int | None,
        typer.Option(help="Values in one update: 1,200,000; memory 10,000,000."),
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Clients; 10, or 20 with memory, beside 3.")
    ] = None,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(help="Counted repeats, after one that warms up: 20; memory 2 rounds."),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time TenSEAL's CKKS and BFV and python-paillier beside it, the last projected from a "
            "sample.",
        ),
    ] = False,
    top_k: Annotated[
        float | None,
        typer.Option("--top-k", help="Time FLASHE of so large a share of each update beside it."),
    ] = None,
    select: Annotated[
        float | None,
        typer.Option(
            "--select", help="Time FedML-HE with so large a share of each update encrypted."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Time encryption beside what nobody can beat and what else one might use.

    WHAT are schemes, whose encryption, addition and decryption of one update are timed. Or

    memory: of the ServerApp in deployments on this machine, and of a federation in one process with ten
    times the values; about 8 minutes.
    """
    from rich.console import Console

    from flhe_app.signals import Stopped
    from flhe_lab.bench.table import progress

    names = tuple(what or ())
    other = [name for name in names if name in WHAT]
    if other and len(names) > 1:
        raise ConfigError(f"{other[0]!r} is measured by itself: name it alone")
    asked = Asked(names, values, cohort, dropouts, threads, repeats, peers, top_k, select)
    try:
        with progress(Console(stderr=True)) as advance:
            shown = WHAT.get(other[0] if other else "", _times)(asked, advance)
    except Stopped as stopped:
        typer.echo(f"flhe: stopped by {stopped}; everything it started is stopped too", err=True)
        raise typer.Exit(128 + stopped.number) from None
    if json_file is not None:
        write_json(json_file, json.dumps(shown.data, indent=2))
    out = console(json_file, shown.width)
    for each in shown.tables:
        out.print(each)

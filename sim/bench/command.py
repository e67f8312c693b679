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
    key_bits: int | None = None
    quick: bool = False

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


def _round(asked: Asked, progress: Progress) -> Shown:
    from flhe_lab.bench.host import machine
    from flhe_lab.bench.table import round_table
    from flhe_lab.crowd.round_cost import round_cost

    cohort = 10 if asked.cohort is None else asked.cohort
    given = asked.given(rounds="repeats")
    cost = round_cost(cohort=cohort, threads=asked.threads, progress=progress, **given)
    return Shown([round_table(cost, cohort)], {"machine": machine(), "round": cost.to_json()})


def _memory(asked: Asked, progress: Progress) -> Shown:
    from flhe_app import launch
    from flhe_lab.bench import memory

    with launch.signals():
        sizes = asked.given(values="values", nodes="cohort", rounds="repeats")
        rows = memory.memory(**sizes, progress=progress)
    return Shown([memory.table(rows)], memory.to_data(rows))


def _flower(asked: Asked, progress: Progress) -> Shown:
    from flhe_lab.bench import flower

    values = flower.VALUES if asked.values is None else asked.values
    repeats = asked.repeats or (2 if asked.quick else flower.REPEATS)
    settings = flower.settings(values, quick=asked.quick)
    found = flower.compare(settings, repeats=repeats, progress=progress)
    return Shown([flower.table(found)], flower.to_data(found), 110)


def _paillier(asked: Asked, progress: Progress) -> Shown:
    from flhe_lab.bench import paillier

    given = asked.given(key_bits="key_bits", count="values", repeats="repeats")
    rows = paillier.measure(**given, progress=progress)
    return Shown([paillier.table(rows)], paillier.to_data(rows), 100)


WHAT: dict[str, Callable[[Asked, Progress], Shown]] = {
    "round": _round,
    "memory": _memory,
    "flower": _flower,
    "paillier": _paillier,
}
"""Name -> what is measured in place of schemes' encryption of one update."""


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help="Schemes, or one of round, memory, flower, paillier.",
        ),
    ] = None,
    values: Annotated[
        int | None,
        typer.Option(
            help="Values in one update: 1,200,000; memory 10,000,000; flower 1,000,000. For "
            "paillier, ciphertexts that share tables: 2,048."
        ),
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Clients; 10, or 20 with memory, beside 3.")
    ] = None,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="Counted repeats, after one that warms up: 20; flower and paillier 7; round 3 and "
            "memory 2 rounds."
        ),
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
    key_bits: Annotated[
        int | None, typer.Option(help="Of paillier's modulus: 2048, 3072 or 4096.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Of flower: few clients.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Time encryption beside what nobody can beat and what else one might use.

    WHAT are schemes, whose encryption, addition and decryption of one update are timed. Or one of:

    round: whole rounds of a CNN, 1,500 images a client.

    memory: of the ServerApp in deployments on this machine, and of a federation in one process with ten
    times the values; about 8 minutes.

    flower: SASH beside Flower's own SecAgg+ as installed.

    paillier: what each trick brings to Paillier, a ciphertext at a time.
    """
    from rich.console import Console

    from flhe_app.signals import Stopped
    from flhe_lab.bench.table import progress

    names = tuple(what or ())
    other = [name for name in names if name in WHAT]
    if other and len(names) > 1:
        raise ConfigError(f"{other[0]!r} is measured by itself: name it alone")
    asked = Asked(
        names, values, cohort, dropouts, threads, repeats, peers, top_k, select, key_bits, quick
    )
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

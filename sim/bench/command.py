"""`flhe bench`: what is measured by name, and the command around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flhe.errors import ConfigError
from flhe.json_option import JsonFile, console, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flhe_lab.bench.turns import Progress

Options = Mapping[str, Any]
"""What the user said, by option; a measurement has defaults of its own."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is printed, in so many columns or as many as there are, and written as JSON."""

    tables: Sequence[RenderableType]
    data: dict[str, Any]
    width: int | None = None


def _given(options: Options, **names: str) -> dict[str, Any]:
    """What was said of the options `names`: parameter=option."""
    return {to: options[option] for to, option in names.items() if option in options}


def _times(schemes: Sequence[str], options: Options, progress: Progress) -> Shown:
    from flhe_lab.bench.contender import Setting
    from flhe_lab.bench.table import matrix_note, table
    from flhe_lab.bench.times import bench, to_data

    names = {name: name for name in ("values", "cohort", "dropouts", "threads")}
    setting = Setting(**_given(options, **names))
    found = bench(
        schemes or ("flashe", "plain"),
        setting,
        progress=progress,
        **_given(options, with_peers="peers", repeats="repeats"),
    )
    notes = filter(None, [matrix_note(found)])
    return Shown([table(found, setting), *notes], to_data(found, setting))


def _memory(options: Options, progress: Progress) -> Shown:
    from flhe_app import launch
    from flhe_lab.bench import memory

    with launch.signals():
        sizes = _given(options, values="values", nodes="cohort", rounds="repeats")
        rows = memory.memory(**sizes, progress=progress)
    return Shown([memory.table(rows)], memory.to_data(rows))


def _flower(options: Options, progress: Progress) -> Shown:
    from flhe_lab.bench import flower

    quick = bool(options.get("quick"))
    settings = flower.settings(options.get("values", flower.VALUES), quick=quick)
    repeats = options.get("repeats", 2 if quick else flower.REPEATS)
    found = flower.compare(settings, repeats=repeats, progress=progress)
    return Shown([flower.table(found)], flower.to_data(found), 110)


def _paillier(options: Options, progress: Progress) -> Shown:
    from flhe_lab.bench import paillier

    given = _given(options, key_bits="key_bits", count="values", repeats="repeats")
    rows = paillier.measure(**given, progress=progress)
    table = paillier.table(rows, **_given(options, key_bits="key_bits"))
    return Shown([table], paillier.to_data(rows), 100)


WHAT: dict[str, Callable[[Options, Progress], Shown]] = {
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
            help="Schemes, or one of memory, flower, paillier.",
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
    dropouts: Annotated[int | None, typer.Option(help="Clients whose upload is missing.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of one client.")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="Counted repeats, after one that warms up: 20; flower and paillier 7; memory 2 "
            "rounds."
        ),
    ] = None,
    peers: Annotated[
        bool | None,
        typer.Option(
            "--peers",
            help="Time TenSEAL's CKKS and BFV and python-paillier beside it, the last projected from a "
            "sample.",
        ),
    ] = None,
    key_bits: Annotated[
        int | None, typer.Option(help="Of paillier's modulus: 2048, 3072 or 4096.")
    ] = None,
    quick: Annotated[bool | None, typer.Option("--quick", help="Of flower: few clients.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Time encryption beside what nobody can beat and what else one might use.

    WHAT are schemes, whose encryption, addition and decryption of one update are timed. Or one of:

    memory: of the ServerApp in deployments on this machine, and of a federation in one process with ten
    times the values; about 8 minutes.

    flower: SASH beside Flower's own SecAgg+ as installed.

    paillier: what each trick brings to Paillier, a ciphertext at a time.
    """
    from rich.console import Console

    from flhe_app.signals import Stopped
    from flhe_lab.bench.table import progress

    said = {
        "values": values,
        "cohort": cohort,
        "dropouts": dropouts,
        "threads": threads,
        "repeats": repeats,
        "peers": peers,
        "key_bits": key_bits,
        "quick": quick,
    }
    options = {name: value for name, value in said.items() if value is not None}
    names = tuple(what or ())
    other = [name for name in names if name in WHAT]
    if other and len(names) > 1:
        raise ConfigError(f"{other[0]!r} is measured by itself: name it alone")
    try:
        with progress(Console(stderr=True)) as advance:
            shown = WHAT[other[0]](options, advance) if other else _times(names, options, advance)
    except Stopped as stopped:
        typer.echo(f"flhe: stopped by {stopped}; everything it started is stopped too", err=True)
        raise typer.Exit(128 + stopped.number) from None
    if json_file is not None:
        write_json(json_file, json.dumps(shown.data, indent=2))
    out = console(json_file, shown.width)
    for each in shown.tables:
        out.print(each)

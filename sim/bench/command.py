"""`flhe bench`: schemes' encryption of one update, timed, or whole rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from flhe.answer import Answer
from flhe.command_group import option
from flhe.errors import ConfigError

DEFAULT = ("flashe", "sash")
"""Schemes of rounds."""
ROUNDS = 3
"""Counted rounds by default: a round takes a thousand times as long as an update."""

UPDATE, ROUND, DEPLOYED = "without --round", "with --round", "with --round --deployed"
MEMORY = "with --memory"
TAKES = {
    UPDATE: {"values", "cohort", "dropouts", "threads", "repeats", "peers"},
    ROUND: {"cohort", "repeats", "task", "images"},
    DEPLOYED: {"values", "repeats", "patience"},
    MEMORY: {"values"},
}
"""Options that each kind of measurement takes."""


def bench(
    ctx: typer.Context,
    schemes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCHEME]...",
            help="Schemes; default: flashe and plain, with --round flashe and sash beside plain.",
        ),
    ] = None,
    values: Annotated[int, option("Values in one update.")] = 1_200_000,
    cohort: Annotated[int, option("Clients.")] = 10,
    dropouts: Annotated[int, option("Clients whose upload is missing.")] = 0,
    threads: Annotated[int, option("Threads of one client.")] = 1,
    repeats: Annotated[
        int,
        option(
            f"Counted repeats, after a first one that does not count; {ROUNDS} rounds by default."
        ),
    ] = 20,
    peers: Annotated[
        bool,
        option("Time TenSEAL and python-paillier too; the latter from a sample.", None, "--peers"),
    ] = False,
    whole: Annotated[
        bool,
        option("Time whole rounds in one process, whose clients train a CNN.", None, "--round"),
    ] = False,
    deployed: Annotated[
        bool,
        option(
            "With --round: a SuperLink and three SuperNodes, whose app trains nothing.",
            None,
            "--deployed",
        ),
    ] = False,
    memory: Annotated[
        bool,
        option(
            "Measure what a node and the server hold at most, phase by phase; Linux only.",
            None,
            "--memory",
        ),
    ] = False,
    task: Annotated[str, option("With --round: the network; images are random.")] = "alexnet",
    images: Annotated[
        int,
        option("With --round: images for a client's training; a fifth as many for its evaluation."),
    ] = 500,
    patience: Annotated[
        float,
        option("With --deployed: multiply every time limit.", "FACTOR"),
    ] = 1.0,
) -> Answer:
    """Time the encryption of one update, beside hard limits and other libraries; or whole rounds.

    With --round, plain FedAvg and the schemes take turns, a round each. A round has an epoch of
    training and an evaluation at each client; all clients share one processor.
    """
    if deployed and not whole:
        raise ConfigError("--deployed measures rounds: add --round")
    if memory and whole:
        raise ConfigError("--memory and --round: choose one of them")
    _check(ctx, MEMORY if memory else DEPLOYED if deployed else ROUND if whole else UPDATE)
    if whole and not _given(ctx, "repeats"):
        repeats = ROUNDS
    if memory:
        return _memory(schemes or DEFAULT[:1], values)
    if deployed:
        return _deployed(schemes or DEFAULT, values, repeats, patience)
    if whole:
        return _rounds(schemes or DEFAULT, task, cohort, images, repeats)
    from flhe_lab.bench import table, times
    from flhe_lab.bench.contender import Setting

    setting = Setting(values, cohort, dropouts, threads)
    names = schemes or ("flashe", "plain")
    with table.progress() as advance:
        rows = times.bench(names, setting, repeats=repeats, with_peers=peers, progress=advance)
    return Answer(times.to_data(rows, setting), table.table(rows, setting))


def _rounds(schemes: Sequence[str], task: str, clients: int, images: int, repeats: int) -> Answer:
    from flhe.packages import require

    require("`flhe bench --round`", "apps", ("torch", "sklearn"))
    from flhe_lab.bench import laps, rounds, table

    setting = rounds.Setting(task, clients, images, repeats)
    with table.progress() as advance:
        rows = rounds.bench(schemes, setting, advance)
    shown = table.round_table(rows, rounds.title(setting), rounds.CAPTION)
    return Answer(laps.to_data(rows, setting), shown, table.phases(rows))


def _deployed(schemes: Sequence[str], values: int, repeats: int, patience: float) -> Answer:
    from flhe.packages import require

    require("`flhe bench --round --deployed`", "apps", ("psutil",))
    from flhe_lab.bench import deployed, laps, table
    from flhe_lab.rehearsal.logs import telling

    setting = deployed.Setting(values, repeats, patience)
    with telling() as say, table.progress() as advance:
        rows = deployed.bench(schemes, setting, say, advance)
    shown = table.round_table(rows, deployed.title(setting), deployed.CAPTION)
    return Answer(laps.to_data(rows, setting), shown, table.phases(rows))


def _memory(schemes: Sequence[str], values: int) -> Answer:
    from flhe_lab.bench import memory, table

    with table.progress() as advance:
        rows = {name: memory.measure(name, values, advance) for name in schemes}
    tables = [memory.table(rows[name], name, values) for name in rows]
    return Answer([memory.to_data(rows[name], name, values) for name in rows], *tables)


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _check(ctx: typer.Context, kind: str) -> None:
    """Refuse an option that this kind of measurement would ignore."""
    for name in sorted(set().union(*TAKES.values()) - TAKES[kind]):
        if _given(ctx, name):
            others = " or ".join(each for each, takes in TAKES.items() if name in takes)
            raise ConfigError(f"--{name} means nothing {kind}: leave it out, or use it {others}")

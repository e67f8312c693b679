"""SASH among up to a thousand virtual clients on Ray, by Flower's simulation engine.

    python -m flhe.sim.ray_crowd [--clients 50,100,200,500,1000] [--values 10000] [--rounds 2]
        [--neighbours 150] [--json FILE] [--figure FILE.png] [--resume | --redraw]

For each number of clients: seconds of one client and of the server in each phase, seconds of a round,
memory of the server's process, of an actor and of all processes, bytes of a client. The model at the
end must be what the clients' steps make. With `--neighbours` each number is run twice, once with all
clients sharing their seeds with all, once on a graph (SASH+), where there is one.

Ten times as many clients are projected, by the growth that theory says of each quantity. `--redraw`
runs nothing: it projects and draws again from the runs that `--json` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flhe.errors import ConfigError, FlheError
from flhe.json_option import write_json
from flhe.sim.bench import figures, machine
from flhe.sim.ray_found import Asked, Found
from flhe.sim.ray_report import FURTHER, QUANTITIES, kinds, table
from flhe.sim.ray_run import RayRun

FORMAT, VERSION = "flhe clients on ray", 1
CLIENTS = "50,100,200,500,1000"
TIMEOUT_S = 3600.0
"""Longest time for one run."""

Run = Callable[[Asked], Found]


def plan(clients: Sequence[int], values: int, rounds: int, neighbours: int) -> list[Asked]:
    """What is to be run: all with all, and on a graph where there is one."""
    from flhe.keys.seed_plan import degree_of

    asked = [Asked(n, values, rounds) for n in clients]
    for n in clients if neighbours else ():
        # As members bound collusion that have no roster.
        if degree_of(neighbours, n, (n - 1) // 3) is not None:
            asked.append(Asked(n, values, rounds, neighbours))
    return asked


def crowds(
    asked: Sequence[Asked],
    run: Run,
    keep: Callable[[Sequence[Found]], None],
    known: Sequence[Found],
) -> list[Found]:
    """Run what is not known yet, each kept when it is over; returns all in the order asked for."""
    found = {one.asked: one for one in known}
    for each in asked:
        if each not in found:
            found[each] = run(each)
            keep(list(found.values()))
    return [found[each] for each in asked]


def to_data(runs: Sequence[Found], where: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return runs and laws as JSON values; `where` is the machine, by default this one."""
    laws = []
    for kind, members in kinds(runs).items():
        most = members[-1].asked.clients
        for quantity in QUANTITIES:
            law = quantity.law(members)
            if law is not None:
                said = {"kind": kind, "quantity": quantity.name, "unit": quantity.unit}
                further = {"clients": FURTHER * most, "projected": law.at(FURTHER * most)}
                laws.append({**said, **asdict(law), "law": law.name, **further})
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine() if where is None else dict(where),
        "runs": [asdict(run) for run in runs],
        "laws": laws,
    }


def read(path: Path) -> list[Found]:
    """Runs of this machine and release in a file that `to_data` made; none where there is no file.

    Raises
    ------
    ConfigError
        The file is something else.
    """
    if not path.exists():
        return []
    runs, there = stored(path)
    here = machine()
    same = all(there.get(name) == here[name] for name in ("processor", "processors", "flhe"))
    return runs if same else []


def stored(path: Path) -> tuple[list[Found], dict[str, Any]]:
    """Return the runs in a file that `to_data` made, and the machine that made them.

    Raises
    ------
    ConfigError
        The file cannot be read, or is something else.
    """
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


def command(
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = CLIENTS,
    values: Annotated[int, typer.Option(help="Values in the model.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 2,
    neighbours: Annotated[
        int, typer.Option(help="Also with so many neighbours (SASH+); 0: only all with all.")
    ] = 150,
    timeout: Annotated[float, typer.Option(help="Longest time for one run, s.")] = TIMEOUT_S,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to FILE.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Draw them into FILE, a .png.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take what is in --json and run the rest.")
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Run nothing: project and draw what is in --json again."),
    ] = False,
) -> None:
    """Run SASH with more and more virtual clients on Ray."""
    try:
        if redraw:
            runs = _redraw(json_file, figure)
        else:
            runs = _run(clients, values, rounds, neighbours, timeout, json_file, figure, resume)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    for kind, members in kinds(runs).items():
        Console(width=130).print(table(kind, members))


def _redraw(json_file: Path | None, figure: Path | None) -> list[Found]:
    if json_file is None:
        raise ConfigError("--redraw needs --json: the file that holds the runs")
    if figure is not None:
        figures.check(figure)
    runs, where = stored(json_file)
    write_json(json_file, json.dumps(to_data(runs, where), indent=1))
    _draw(runs, figure)
    return runs


def _draw(runs: Sequence[Found], figure: Path | None) -> None:
    if figure is not None:
        from flhe.sim.ray_plot import plot

        plot(runs, figure)


def _run(
    clients: str,
    values: int,
    rounds: int,
    neighbours: int,
    timeout: float,
    json_file: Path | None,
    figure: Path | None,
    resume: bool,
) -> list[Found]:
    from flhe.sim.bench.table import progress

    if figure is not None:
        figures.check(figure)
    if resume and json_file is None:
        raise ConfigError("--resume needs --json: the file that holds what was run before")
    asked = plan(_numbers(clients), values, rounds, neighbours)

    def keep(runs: Sequence[Found]) -> None:
        if json_file is not None:
            write_json(json_file, json.dumps(to_data(runs), indent=1))

    with progress(Console(stderr=True)) as advance:

        def run(each: Asked) -> Found:
            return RayRun(each, timeout, lambda n, what: advance(n, each.clients, what)).run()

        known = read(json_file) if resume and json_file is not None else []
        runs = crowds(asked, run, keep, known)
    keep(runs)
    _draw(runs, figure)
    return runs


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.replace(",", " ").split()})
    except ValueError:
        raise ConfigError(f"--clients {text!r}: name numbers with commas, as in 50,100") from None


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()

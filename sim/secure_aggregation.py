r"""Running time of secure aggregation: one client and the server, as clients grow and drop out.

    python -m flhe.sim.secure_aggregation times.png

SASH's Fig. 3 (b, c) and Fig. 4 at one's desk: M = 100,000 values of 16 bits; over N at a dropout of
0.1; over the dropout at N = 500, and at the paper's N = 50. The paper adds client and server up; here
they are apart, since clients work beside each other. Nobody waits for a network.

All contenders take turns within each repeat, on one processor; the first turn is not counted. Where a
round would take hours, Flower's server is projected from its parts, and drawn hollow.

Source: Liu et al., "SASH", Sec. 4.1, Fig. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.sim import figures
from flhe.sim.aggregation_contenders import BITS, DEGREE, MAKERS, Contender, Maker, Setting
from flhe.sim.bench import Progress, Times, machine, pinned

FORMAT, VERSION = "flhe secure aggregation times", 1
COMMAND = "python -m flhe.sim.secure_aggregation"
VALUES = 100_000
REPEATS = 5

Axis = Literal["clients", "dropout"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One panel of the figure.

    Parameters
    ----------
    title : str
        What stays the same.
    axis : "clients" or "dropout"
        What varies.
    settings : tuple[Setting, ...]
        Point by point, ascending.
    """

    title: str
    axis: Axis
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds of one contender in one setting; `projected` is the server's."""

    contender: str
    setting: Setting
    client_s: Times
    server_s: Times
    repeats: int
    projected: bool


def sweeps(quick: bool) -> tuple[Sweep, ...]:
    """What the figure shows; `quick`: the same panels, small enough for a test."""
    values, many, few = VALUES, 500, 50
    sizes: tuple[int, ...] = (50, 100, 200, 300, 400, 500)
    rates: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)
    if quick:
        values, sizes, many, few, rates = 1000, (10, 20), 20, 10, (0.0, 0.3)
    return (
        Sweep("dropout 0.1", "clients", tuple(Setting(n, values, 0.1) for n in sizes)),
        Sweep(f"{many} clients", "dropout", tuple(Setting(many, values, d) for d in rates)),
        Sweep(f"{few} clients", "dropout", tuple(Setting(few, values, d) for d in rates)),
    )


def measure(
    setting: Setting,
    makers: Sequence[Maker] = MAKERS,
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
    done: tuple[int, int] = (0, 1),
) -> list[Point]:
    """Time all contenders in one setting, in turns.

    Parameters
    ----------
    setting : Setting
        The point.
    makers : sequence of Maker
        Who takes part; one without a point here is left out.
    repeats : int
        Turns that count, after one that does not.
    progress, done
        Receives `done` and what is going on.

    Raises
    ------
    ConfigError
        No repeats.
    FlheError
        A sum that is not the sum.
    """
    if repeats < 1:
        raise ConfigError(f"repeats={repeats}: must be at least 1")
    taking: list[tuple[Maker, Contender]] = []
    for maker in makers:
        if progress is not None:
            progress(*done, f"{maker.name}, {setting.clients} clients: making it ready")
        contender = maker.make(setting)
        if contender is not None:
            taking.append((maker, contender))
    client: dict[str, list[float]] = {maker.name: [] for maker, _ in taking}
    server: dict[str, list[float]] = {maker.name: [] for maker, _ in taking}
    for turn in range(repeats + 1):
        for maker, contender in taking:
            if turn > maker.max_repeats:
                continue
            if progress is not None:
                progress(*done, f"{maker.name}, {setting.clients} clients: turn {turn}")
            if turn == 0 and maker.max_repeats == 1:
                continue  # who takes minutes, once, is warm by then
            seconds = contender.client(), contender.server()
            if turn > 0:
                client[maker.name].append(seconds[0])
                server[maker.name].append(seconds[1])
    found = []
    for maker, contender in taking:
        ours, servers = Times.of(client[maker.name]), Times.of(server[maker.name])
        assert ours is not None
        assert servers is not None
        count = len(client[maker.name])
        found.append(Point(maker.name, setting, ours, servers, count, contender.projected))
    return found


def run(
    quick: bool = False,
    makers: Sequence[Maker] = MAKERS,
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> dict[Setting, list[Point]]:
    """Every setting of every panel, once."""
    settings = list(dict.fromkeys(s for sweep in sweeps(quick) for s in sweep.settings))
    found: dict[Setting, list[Point]] = {}
    with pinned(1):
        for i, setting in enumerate(settings):
            found[setting] = measure(
                setting, makers, repeats=repeats, progress=progress, done=(i, len(settings))
            )
    return found


def to_data(
    panels: Sequence[Sweep], found: Mapping[Setting, Sequence[Point]], made_by: str
) -> dict[str, Any]:
    """What was measured and how, as JSON values."""
    return {
        "made_by": {"command": made_by, **{n: version(n) for n in ("flhe", "flwr")}},
        "machine": machine(),
        "unit": "seconds on one processor, minimum and median over `repeats`",
        "client": "one client's work in a round, without training, quantizing (but in Flower's mod, "
        "which does it) and network",
        "server": "from the last answer to the sum",
        "values_of_bits": BITS,
        "degree": DEGREE,
        "sweeps": [
            {
                "title": sweep.title,
                "axis": sweep.axis,
                "points": [
                    {**asdict(point), "dropouts": setting.dropouts}
                    for setting in sweep.settings
                    for point in found[setting]
                ],
            }
            for sweep in panels
        ],
    }


def table(panels: Sequence[Sweep], found: Mapping[Setting, Sequence[Point]]) -> Table:
    """One line for each setting and contender."""
    out = Table(
        title=f"secure aggregation of {next(iter(found)).values:,} values, seconds",
        caption="medians, on one processor; ~ projected from parts",
    )
    for heading in ("clients", "dropout", "contender", "client", "server"):
        out.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=True)
    for setting in dict.fromkeys(s for sweep in panels for s in sweep.settings):
        for i, point in enumerate(found[setting]):
            first = (str(setting.clients), f"{setting.dropout:g}") if i == 0 else ("", "")
            out.add_row(
                *first,
                point.contender,
                _seconds(point.client_s),
                ("~" if point.projected else "") + _seconds(point.server_s),
                end_section=i == len(found[setting]) - 1,
            )
    return out


def _seconds(times: Times) -> str:
    return f"{times.median:.3g}"


def figure(
    path: Path,
    quick: bool = False,
    progress: Progress | None = None,
    *,
    makers: Sequence[Maker] = MAKERS,
    repeats: int = REPEATS,
    made_by: str = COMMAND,
) -> Table:
    """Measure, write the figure to `path` and its data beside it; the table to print."""
    from flhe.sim.aggregation_plot import plot

    figures.check(path)
    panels = sweeps(quick)
    found = run(quick, makers, repeats=repeats, progress=progress)
    figures.save_data(path, FORMAT, VERSION, to_data(panels, found, made_by))
    plot(panels, found, path)
    return table(panels, found)


def command(
    path: Annotated[Path, typer.Argument(help="Figure, a .png; its data goes beside it.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small, to see that it works.")] = False,
    repeats: Annotated[int, typer.Option(help="Turns that count.")] = REPEATS,
) -> None:
    """Time secure aggregation as clients grow and drop out."""
    from flhe.sim.bench_table import progress
    from flhe.sim.sash_aggregation import ALL

    try:
        with progress(Console(stderr=True)) as advance:
            found = figure(path, quick, advance, makers=ALL, repeats=repeats)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    Console().print(found)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()

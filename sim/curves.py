r"""Learning curves: plain FedAvg beside encrypted federations on one task.

    python -m flhe.sim.curves curves.png --task digits --rounds 20 \
        --run 'FLASHE, 8 bits={"bits": 8}' --run 'SASH={"scheme": "sash", "unmask": "clients"}'

Each --run is a name and, as JSON, arguments of a preset of `flhe.strategies`: that of "scheme",
FLASHE's unless said; "rounds" may stop it earlier than the others. Plain FedAvg always runs, first.
Writes the figure and its data, curves.json: FLASHE's Fig. 9, at one's desk.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.sim.bench import Progress, figures, machine
from flhe.sim.curve_plot import plot
from flhe.sim.learning import (
    SETTLED,
    Arguments,
    Curve,
    Setting,
    as_json,
    learn,
    rounds_of,
    strategy,
)

if TYPE_CHECKING:
    from flhe.apps.tasks.base import Task
    from flhe.strategies.report import RoundReport

FORMAT, VERSION = "flhe learning curves", 1
PLAIN = "plain FedAvg"
NEAR = 0.02
"""A difference in accuracy that we call none."""


def curves(
    path: Path,
    task: Task,
    setting: Setting,
    runs: Mapping[str, Arguments | None],
    *,
    data_dir: str = "",
    title: str = "",
    workers: int = 1,
    threads: int = 1,
    resume: bool = False,
    progress: Progress | None = None,
) -> list[Curve]:
    """Run the federations one after the other; write the data after each, and the figure at last.

    Parameters
    ----------
    path : Path
        Of the figure, a .png; the data goes into a .json beside it.
    task : Task
        What is learned; from `task_named`, or one of your own.
    setting : Setting
        How all of them train.
    runs : mapping of str to mapping or None
        Name -> `Arguments`, or None for plain FedAvg.
    data_dir, title : str
        Where the task finds its data set; what stands above the figure.
    workers, threads : int
        Clients that train at a time, and torch's threads; see `learn`.
    resume : bool
        Keep the curves in the .json, which must be of the same task and setting, and run those of
        `runs` that are not among them.
    progress : callable, optional
        Receives (rounds done, rounds in all, what is going on).

    Raises
    ------
    ConfigError
        Settings or arguments that cannot work, a path that cannot be written, data that is missing.
    FlheError
        A federation failed.
    """
    figures.check(path)
    found = _earlier(path, task.name, setting) if resume else {}
    data = task.load(data_dir, download=False)
    missing = {
        name: arguments
        for name, arguments in runs.items()
        if name not in found or found[name].arguments != as_json(arguments)
    }
    for arguments in missing.values():
        strategy(setting, len(data.train.labels), arguments)  # refuse now, not after hours
    before, total = 0, sum(rounds_of(setting, arguments) for arguments in missing.values())
    for name, arguments in missing.items():
        turns = itertools.count(before + 1)
        before += rounds_of(setting, arguments)

        def note(report: RoundReport, name: str = name, turns: Iterator[int] = turns) -> None:
            if progress is not None:
                progress(next(turns), total, f"{name}: accuracy {report.accuracy:.4f}")

        found[name] = learn(
            name, task, data, setting, arguments, workers=workers, threads=threads, on_round=note
        )
        data_of_all = to_data(task.name, setting, list(found.values()), title)
        figures.save_data(path, FORMAT, VERSION, data_of_all)
    plot(list(found.values()), task.name, path, title)
    return list(found.values())


def to_data(task: str, setting: Setting, found: Sequence[Curve], title: str = "") -> dict[str, Any]:
    """The curves and what made them, as JSON values; the first is what the others are compared with."""
    made = {"command": "python -m flhe.sim.curves", "flhe": version("flhe")}
    made |= {name: version(name) for name in ("flwr", "torch")}
    return {
        "made_by": made,
        "machine": machine(),
        "task": task,
        "title": title,
        "setting": asdict(setting),
        "settled_over": SETTLED,
        "curves": [
            {
                **curve.to_json(),
                "largest_difference": {
                    series: curve.gap(found[0], series) for series in ("accuracy", "loss")
                },
            }
            for curve in found
        ],
    }


def _earlier(path: Path, task: str, setting: Setting) -> dict[str, Curve]:
    """Curves that are there, by name, where all that they share with ours is the same."""
    beside = path.with_suffix(".json")
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise ConfigError(f"{beside}: holds no curves of version {VERSION}")
        if (found["task"], Setting(**found["setting"])) != (task, setting):
            raise ConfigError(
                f"{beside}: is of another task or setting: give {path.name} a new name"
            )
        return {curve["name"]: Curve.from_json(curve) for curve in found["curves"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FlheError):
            raise
        raise ConfigError(f"{beside}: cannot be read ({type(error).__name__})") from None


def table(found: Sequence[Curve], task: str) -> Table:
    """One line a federation, beside the first."""
    out = Table(
        title=f"{task}: accuracy after {found[0].rounds} rounds",
        caption=f"settled: mean over the last {SETTLED} rounds; {NEAR} and less is no difference",
    )
    for heading in ("", "settled", "to the first", "best", "up", "a round"):
        out.add_column(heading, justify="right" if heading else "left")
    first = found[0]
    for curve in found:
        accuracy, seconds = curve.series["accuracy"], curve.series["round_s"]
        out.add_row(
            curve.name,
            f"{curve.settled:.4f}",
            "" if curve is first else f"{curve.settled - first.settled_after(curve.rounds):+.4f}",
            f"{max(accuracy):.4f}",
            f"{sum(curve.series['bytes_up']) / 1e6:,.1f} MB",
            f"{sum(seconds) / len(seconds):.2f} s",
        )
    return out


def parse_run(text: str) -> tuple[str, dict[str, Any]]:
    """Read NAME=JSON: a curve's name and its arguments."""
    name, equals, arguments = text.partition("=")
    try:
        found = json.loads(arguments) if equals and name.strip() else None
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"--run {text!r}: must be NAME=JSON, such as 'FLASHE, 8 bits={{\"bits\": 8}}'"
        )
    return name.strip(), found


def command(
    path: Annotated[Path, typer.Argument(metavar="FILE.png", help="The figure; .json beside it.")],
    task: Annotated[str, typer.Option(help="A task of `flhe run`.")] = "digits",
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="A federation: arguments of a preset."),
    ] = None,
    clients: Annotated[int, typer.Option(help="Clients in the federation.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 50,
    images: Annotated[int, typer.Option(help="Training images of a client; 0: its share.")] = 0,
    local_epochs: Annotated[int, typer.Option(help="Epochs a client trains in a round.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Step of the optimizer.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of the model, the split, the batches.")] = 0,
    data_dir: Annotated[
        str, typer.Option(envvar="FLHE_DATA_DIR", help="Where the data set's files lie.")
    ] = "",
    optimizer: Annotated[
        str, typer.Option(help="What clients step with: sgd (momentum 0.9), adam or rmsprop.")
    ] = "sgd",
    batches: Annotated[int, typer.Option(help="Batches of an epoch, anew in each; 0: all.")] = 0,
    test_images: Annotated[int, typer.Option(help="Test images of a client; 0: its share.")] = 0,
    split: Annotated[str, typer.Option(help="iid, or pieces: contiguous ones.")] = "iid",
    workers: Annotated[int, typer.Option(min=1, help="Clients that train at a time.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that these share.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the curves that FILE.json has.")
    ] = False,
) -> None:
    """Draw learning curves of plain FedAvg and of encrypted federations."""
    from flhe.apps.tasks import task_named
    from flhe.sim.bench.table import progress

    try:
        setting = Setting(
            clients,
            rounds,
            images,
            local_epochs,
            batch_size,
            learning_rate,
            seed,
            test_images=test_images,
            batches=batches,
            optimizer=optimizer,
            split=split,
        )
        runs: dict[str, Arguments | None] = {PLAIN: None}
        runs |= dict(map(parse_run, run or ["FLASHE={}"]))
        with progress(Console(stderr=True)) as advance:
            found = curves(
                path,
                task_named(task),
                setting,
                runs,
                data_dir=data_dir,
                workers=workers,
                threads=threads,
                resume=resume,
                progress=advance,
            )
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    Console().print(table(found, task))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()

"""`flhe ...` on the command line.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
Whatever flhe raises on purpose becomes one line on standard error and exit code 1.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flhe.errors import FlheError


class OneLineErrors(TyperGroup):
    """A group of commands whose errors are one line, unless FLHE_DEBUG or --verbose is set."""

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command; turn its errors into one line."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            foreign = type(error).__module__.partition(".")[0] in ("click", "typer")
            if foreign or debugging(ctx):
                raise
            line = " ".join(str(error).split())
            if not isinstance(error, FlheError):
                line = f"{type(error).__name__}: {line} (FLHE_DEBUG=1 shows where)"
            typer.echo(f"flhe: {line}", err=True)
            raise typer.Exit(1) from error


def debugging(ctx: Any) -> bool:
    """Whether the user asked for tracebacks."""
    return bool(os.environ.get("FLHE_DEBUG") or ctx.find_root().meta.get("flhe.verbose"))


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Homomorphic encryption and secure aggregation for Flower federations.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flhe {version('flhe')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Homomorphic encryption and secure aggregation for Flower federations."""


@app.command()
def run(
    ctx: typer.Context,
    scheme: Annotated[str, typer.Option(help="flashe, or plain for ordinary FedAvg.")] = "flashe",
    task: Annotated[str, typer.Option(help="digits, cifar10 or fashion-mnist.")] = "digits",
    nodes: Annotated[int, typer.Option(help="Nodes in the federation.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the model, the split and the batches.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to FILE.")
    ] = None,
    partition: Annotated[str, typer.Option(help="How data is split: iid or dirichlet.")] = "iid",
    alpha: Annotated[
        float, typer.Option("--dirichlet-alpha", help="Evenness of a dirichlet split.")
    ] = 0.5,
    local_epochs: Annotated[int, typer.Option(help="Epochs a node trains in a round.")] = 5,
    data_dir: Annotated[
        str, typer.Option(help="Where the files of cifar10 or fashion-mnist lie.")
    ] = "",
    output: Annotated[str, typer.Option(metavar="FILE", help="Where the final model goes.")] = "",
    timeout: Annotated[float, typer.Option(help="Longest time for it all, in seconds.")] = 7200.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's log, and tracebacks.")
    ] = False,
) -> None:
    """Train a real model across a simulated federation."""
    from flhe.apps import launch
    from flhe.apps.settings import Settings

    ctx.find_root().meta["flhe.verbose"] = verbose
    settings = Settings(
        scheme=scheme,
        task=task,
        nodes=nodes,
        num_rounds=rounds,
        seed=seed,
        partition=partition,
        dirichlet_alpha=alpha,
        local_epochs=local_epochs,
        data_dir=data_dir,
        sealed_model=output,
    )
    try:
        launch.run(settings, json_path=json_file, timeout=timeout, verbose=verbose)
    except launch.Stopped as stopped:
        typer.echo(f"flhe: stopped by {stopped}; everything it started is stopped too", err=True)
        raise typer.Exit(128 + stopped.number) from None


@app.command("open")
def open_model(
    sealed: Annotated[Path, typer.Argument(help="The sealed model that a run wrote.")],
    key: Annotated[
        Path, typer.Option("--key", help="A member's state directory, or one above several.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to: .npz (default) or .pt."),
    ] = None,
) -> None:
    """Open a sealed model with a key of its group."""
    from flhe.checkpoint import open_checkpoint, write_model

    out = output or sealed.with_suffix(".npz")
    model = open_checkpoint(sealed, key)
    write_model(model, out)
    count = model.layout.floats + model.layout.integers
    typer.echo(f"{out}: {len(model.layout.entries)} arrays, {count:,} values, round {model.round}")


@app.command()
def bench(
    schemes: Annotated[
        list[str] | None, typer.Argument(metavar="[SCHEME]...", help="Schemes to time.")
    ] = None,
    values: Annotated[int, typer.Option(help="Values in one update.")] = 1_200_000,
    cohort: Annotated[int, typer.Option(help="Clients.")] = 10,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(help="Counted repeats, after one that warms up; 20, or 3 whole rounds."),
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Time TenSEAL CKKS beside it.")] = False,
    whole_round: Annotated[
        bool,
        typer.Option("--round", help="Time whole rounds instead: a CNN, 1,500 images a client."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to FILE.")
    ] = None,
) -> None:
    """Time encryption beside what nobody can beat and what else one might use."""
    from rich.console import Console

    from flhe.sim import bench as timing
    from flhe.sim.bench_table import progress, table
    from flhe.sim.contenders import Setting

    if whole_round:
        _bench_round(cohort, threads, 3 if repeats is None else repeats, json_file)
        return
    setting = Setting(values, cohort, dropouts, threads)
    with progress(Console(stderr=True)) as advance:
        rows = timing.bench(
            schemes or ["flashe", "plain"],
            setting,
            repeats=20 if repeats is None else repeats,
            with_peers=peers,
            progress=advance,
        )
    if json_file is not None:
        timing.write_json(json_file, timing.to_json(rows))
    Console().print(table(rows))


def _bench_round(cohort: int, threads: int, repeats: int, json_file: Path | None) -> None:
    import json

    from rich.console import Console

    from flhe.sim.bench import machine, write_json
    from flhe.sim.bench_table import progress, round_table
    from flhe.sim.round_cost import round_cost

    with progress(Console(stderr=True)) as advance:
        cost = round_cost(cohort=cohort, rounds=repeats, threads=threads, progress=advance)
    if json_file is not None:
        write_json(json_file, json.dumps({"machine": machine(), "round": cost.to_json()}, indent=2))
    Console().print(round_table(cost, cohort))


if __name__ == "__main__":
    app()

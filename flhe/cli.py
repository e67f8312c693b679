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


if __name__ == "__main__":
    app()

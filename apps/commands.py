"""`flhe run` and `flhe shelf`, added to `flhe ...` through the entry point `flhe.commands`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from flhe.answer import Answer
from flhe.command_group import COORDINATOR, SIMULATION, examples
from flhe_app.option import about, flag_of
from flhe_app.run_command import RunCommand, from_file, scheme_text
from flhe_app.settings import Settings
from flhe_app.shelf_commands import app as shelf_commands

app = typer.Typer()
app.add_typer(shelf_commands, name="shelf", rich_help_panel=COORDINATOR)


def run(
    ctx: typer.Context,
    report_path: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Append a JSON line after each round: time of each phase.",
        ),
    ] = None,
    resumed: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Go on with the run in this directory; --rounds may grow.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file of settings; options here override them."),
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="List all settings, and do nothing else.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="X", help="Maximum time of the run in seconds.", show_default=False),
    ] = 7200.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's log, and tracebacks.")
    ] = False,
    **given: Any,
) -> Answer:
    """Train a real model across a simulated federation."""
    from flhe_app import launch
    from flhe_app.flower_run import How
    from flhe_app.signals import Stopped

    if list_settings:
        return _settings()
    how = How(report_path, timeout, verbose)
    ctx.find_root().meta["flhe.verbose"] = verbose
    named = scheme_text(ctx, given)
    sources = {name: ctx.get_parameter_source(name) for name in given}
    said = {n: given[n] for n, source in sources.items() if source and source.name == "COMMANDLINE"}
    if named is not None:
        said["scheme"] = named
    try:
        if resumed is not None:
            return launch.resume(resumed, said, how)
        return launch.run(Settings(**{**from_file(config), **said}), how)
    except Stopped as stopped:
        hint = f"; {stopped.hint}" if stopped.hint else ""
        typer.echo(
            f"flhe: stopped by {stopped}; everything it started is stopped too{hint}", err=True
        )
        raise typer.Exit(128 + stopped.number) from None


def _settings() -> Answer:
    """Return all settings that the command line has."""
    listed = [(flag, f) for f in fields(Settings) if (flag := flag_of(f))]
    data = [{"option": k, "help": about(f).help, "default": f.default} for k, f in listed]
    return Answer(
        data, "\n".join(f"{k}  {about(f).help}  [default: {f.default!r}]" for k, f in listed)
    )


*_OWN, _ = inspect.signature(run, eval_str=True).parameters.values()
run.__signature__ = inspect.Signature(_OWN)  # type: ignore[attr-defined]  # what Typer reads
app.command(
    cls=RunCommand,
    rich_help_panel=SIMULATION,
    epilog=examples(
        "flhe run sash --rounds 3 --drops 1", "flhe run plain --task fcn-digits --json"
    ),
)(run)

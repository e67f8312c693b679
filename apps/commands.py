"""`flhe run` and `flhe shelf`, added to `flhe ...` through the entry point `flhe.commands`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from flhe.json_option import JsonFile
from flhe_app.option import about, flag_of
from flhe_app.run_command import RunCommand, from_file, scheme_text
from flhe_app.settings import Settings
from flhe_app.shelf_commands import app as shelf_commands

app = typer.Typer()
app.add_typer(shelf_commands, name="shelf")


def run(
    ctx: typer.Context,
    json_path: JsonFile = None,
    report_path: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Append a JSON line after each round: what each phase of it took.",
        ),
    ] = None,
    resumed: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Go on with the run whose directory this is; --rounds may add to its rounds.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings in TOML, which options here override; [scheme] may be a table.",
        ),
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="List all settings, and do nothing else.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Longest time for it all, in seconds.", show_default=False)
    ] = 7200.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's log, and tracebacks.")
    ] = False,
    **given: Any,
) -> None:
    """Train a real model across a simulated federation."""
    from flhe_app import launch
    from flhe_app.flower_run import How
    from flhe_app.signals import Stopped

    if list_settings:
        listed = [(flag, f) for f in fields(Settings) if (flag := flag_of(f))]
        wide = max(len(flag) for flag, _ in listed)
        for flag, field in listed:
            typer.echo(f"{flag:<{wide}}  {about(field).help}  [default: {field.default!r}]")
        return
    how = How(json_path, report_path, timeout, verbose)
    ctx.find_root().meta["flhe.verbose"] = verbose
    named = scheme_text(ctx, given)
    sources = {name: ctx.get_parameter_source(name) for name in given}
    said = {n: given[n] for n, source in sources.items() if source and source.name == "COMMANDLINE"}
    if named is not None:
        said["scheme"] = named
    try:
        if resumed is not None:
            launch.resume(resumed, said, how)
        else:
            launch.run(Settings(**{**from_file(config), **said}), how)
    except Stopped as stopped:
        hint = f"; {stopped.hint}" if stopped.hint else ""
        typer.echo(
            f"flhe: stopped by {stopped}; everything it started is stopped too{hint}", err=True
        )
        raise typer.Exit(128 + stopped.number) from None


*_OWN, _ = inspect.signature(run, eval_str=True).parameters.values()
run.__signature__ = inspect.Signature(_OWN)  # type: ignore[attr-defined]  # what Typer reads
app.command(cls=RunCommand)(run)

"""`flhe run` and `flhe shelf`, added to `flhe ...` through the entry point `flhe.commands`."""

from __future__ import annotations

import inspect
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from flhe.answer import Answer, notes
from flhe.command_group import COORDINATOR, SIMULATION, Commands, examples
from flhe_app.option import about, flag_of
from flhe_app.run_command import How, RunCommand, from_file, scheme_text
from flhe_app.settings import Settings

app = typer.Typer()


def run(ctx: typer.Context, **given: Any) -> Answer:
    """Train a real model across a simulated federation."""
    from flhe_app import launch
    from flhe_app.signals import Stopped

    how = How(**{field.name: given.pop(field.name) for field in fields(How)})
    if how.list_settings:
        return _settings()
    named = scheme_text(ctx, given)
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in given}
    preset, said = (
        {name: given[name] for name in given if sources[name] == source}
        for source in ("ENVIRONMENT", "COMMANDLINE")
    )
    if named is not None:
        said["scheme"] = named
    try:
        if how.resumed:
            return launch.resume(Path(how.resumed), {**from_file(how.config), **said}, how)
        return launch.run(Settings(**{**preset, **from_file(how.config), **said}), how)
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


shelf = typer.Typer(
    cls=Commands,
    help="Sign apps for SuperNodes that run reviewed apps only, and serve them to a SuperLink.",
    no_args_is_help=True,
)


@shelf.command(epilog=examples("flhe shelf sign app.fab --key reviewer"))
def sign(
    fab: Annotated[Path, typer.Argument(help="The app, as `flwr build` made it.")],
    key: Annotated[Path, typer.Option(help="The reviewer's Ed25519 key, of OpenSSH.")],
) -> Answer:
    """Sign a reviewed app."""
    from flhe.provision.federation.reviewers import key_id
    from flhe_app.shelf import add_signature, reviewer_key

    private = reviewer_key(key)
    add_signature(fab, private, int(time.time()))
    signer = key_id(private.public_key())
    return Answer({"file": fab, "key": signer}, f"{fab}: signed by {signer}")


@shelf.command(epilog=examples("flhe shelf serve apps --port 8081"))
def serve(
    directory: Annotated[Path, typer.Argument(help="Directory of apps and their signatures.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8081,
) -> None:
    """Serve apps to the SuperLink beside it."""
    from flhe_app.shelf import serving

    with serving(directory, host, port) as url:
        notes().print(f"start the SuperLink with FLWR_SUPERGRID_API_URL={url}", highlight=False)
        threading.Event().wait()


app.add_typer(shelf, name="shelf", rich_help_panel=COORDINATOR)

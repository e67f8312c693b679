"""Command groups: one-line errors, and suggestions for a misspelled name."""

from __future__ import annotations

import os
from typing import Any

import click
import typer
from typer.core import TyperGroup

from flhe.errors import FlheError
from flhe.packages import explain

ENTRY_POINT = "flhe.commands"
"""Entry point through which other distributions add commands: each names a `typer.Typer`."""

_APP = ("flhe-app", "apps")
_LAB = ("flhe-lab", "sim")
ELSEWHERE = {
    **dict.fromkeys(("run", "shelf"), _APP),
    **dict.fromkeys(
        ("bench", "tables", "corrections", "advise", "audit", "rehearse", "crowd"), _LAB
    ),
}
"""Commands of other distributions: the distribution, and its folder in the repository."""


class Commands(TyperGroup):
    """A group of commands that suggests the nearest names once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if hasattr(click.exceptions, "NoSuchCommand"):  # both click and Typer suggest names
            self.suggest_commands = False


class OneLineErrors(Commands):
    """A group of commands whose errors are one line, unless FLHE_DEBUG or --verbose is set."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a missing one, name the distribution that has it."""
        if args[0] in ELSEWHERE and args[0] not in self.commands:
            name, folder = ELSEWHERE[args[0]]
            typer.echo(
                f"flhe: `flhe {args[0]}` comes with {name}, which is not installed: build the wheel "
                f"of the folder {folder}/ and install it, as docs/install.md says",
                err=True,
            )
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command; turn its errors into one line."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            foreign = type(error).__module__.partition(".")[0] in ("click", "typer")
            gone = isinstance(error, BrokenPipeError)  # a closed pipe: click exits quietly
            wants = os.environ.get("FLHE_DEBUG") or ctx.find_root().meta.get("flhe.verbose")
            if foreign or gone or wants:
                raise
            typer.echo(f"flhe: {_one_line(error, ctx.invoked_subcommand)}", err=True)
            refused = ctx.invoked_subcommand == "keygen" and isinstance(error, FlheError)
            raise typer.Exit(2 if refused else 1) from error


def _one_line(error: Exception, command: str | None) -> str:
    """Return the user's text for an error."""
    line = " ".join(str(error).split())
    if isinstance(error, FlheError):
        return line
    if isinstance(error, ModuleNotFoundError) and (missing := explain(error, f"`flhe {command}`")):
        return missing
    return f"{type(error).__name__}: {line} (FLHE_DEBUG=1 shows where)"

"""Command groups: shared options, examples, one-line errors, suggestions for a misspelled name."""

from __future__ import annotations

import os
from typing import Any, get_type_hints

import click
import typer
from typer.core import TyperGroup, TyperOption

from flhe.answer import JSON, QUIET, Answer
from flhe.errors import FlheError
from flhe.packages import explain

ENTRY_POINT = "flhe.commands"
"""Entry point through which other distributions add commands: each names a `typer.Typer`."""

_APP = ("flhe-app", "apps")
_LAB = ("flhe-lab", "sim")
ELSEWHERE = {
    **dict.fromkeys(("run", "shelf"), _APP),
    **dict.fromkeys(("bench", "tables", "corrections", "advise", "audit", "audit-server"), _LAB),
    **dict.fromkeys(("compare-privacy", "rehearse", "crowd"), _LAB),
}
"""Commands of other distributions: the distribution, and its folder in the repository."""

SITE, COORDINATOR = "For a site", "For the coordinator"
SIMULATION, RESEARCH = "To plan, and to simulate on this machine", "For research"
"""Panels of `flhe --help`."""


def examples(*commands: str) -> str:
    """Return the end of a command's help: commands that work as they are written.

    A backslash continues a line, as in a shell.
    """
    lines = (f"$ {command}".replace("\\\n", "\\\n\n") for command in commands)
    return "\n\n".join(("Examples:", *lines))


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:  # noqa: A002
    """Return an option of a command; its help calls its value `metavar`."""
    return typer.Option(*names, help=help, metavar=metavar, **more)


def _flag(*names: str, help: str, key: str = "", **more: Any) -> TyperOption:  # noqa: A002
    """Return an option that notes in the context that it was given."""

    def note(ctx: Any, _option: Any, given: bool) -> None:
        if given:
            ctx.meta[key] = True
            if not key:
                _no_color()

    kind: dict[str, Any] = {
        "is_flag": True,
        "default": False,
        "expose_value": False,
        "callback": note,
    }
    return TyperOption(param_decls=[*names], help=help, **kind, **more)


def _no_color() -> None:
    """Print no colours from now on, in help and in errors too."""
    from typer import rich_utils

    os.environ["NO_COLOR"] = "1"
    rich_utils.COLOR_SYSTEM = None


def _share(group: TyperGroup) -> None:
    """Give all commands below a group the shared options: `--json` where one returns an Answer."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            _share(command)
            continue
        paragraphs = (command.help or "").split("\n\n")  # or Typer breaks lines as the source does
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        hints = get_type_hints(command.callback, include_extras=True)
        for given in command.params:  # click 8.5 drops the help that Typer gives to an argument
            for info in getattr(hints.get(str(given.name)), "__metadata__", ()):
                given.help = getattr(given, "help", None) or info.help
        if hints.get("return") is Answer:
            command.params.append(_flag("--json", key=JSON, help="Print one JSON document."))
        command.params += [
            _flag("--quiet", "-q", key=QUIET, help="Print errors only."),
            _flag("--no-color", hidden=True, is_eager=True, help="Print no colours."),
        ]


class Commands(TyperGroup):
    """A group of commands that suggests the nearest names once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if hasattr(click.exceptions, "NoSuchCommand"):  # both click and Typer suggest names
            self.suggest_commands = False


class OneLineErrors(Commands):
    """The root: it prints answers, and one line for an error unless FLHE_DEBUG is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            _flag("--no-color", is_eager=True, help="Print no colours, as NO_COLOR=1.")
        )
        _share(self)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; NO_COLOR holds for help and errors too."""
        if os.environ.get("NO_COLOR"):
            _no_color()
        return super().main(*args, **kwargs)

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
        """Invoke the command and print its answer; turn its errors into one line."""
        try:
            answer = super().invoke(ctx)
            if isinstance(answer, Answer):
                answer.show()
        except Exception as error:
            foreign = type(error).__module__.partition(".")[0] in ("click", "typer")
            gone = isinstance(error, BrokenPipeError)  # a closed pipe: click exits quietly
            if foreign or gone or os.environ.get("FLHE_DEBUG"):
                raise
            typer.echo(f"flhe: {_one_line(error, ctx.invoked_subcommand)}", err=True)
            raise typer.Exit(1) from error
        if isinstance(answer, Answer) and answer.failed:
            raise typer.Exit(1)
        return answer


def _one_line(error: Exception, command: str | None) -> str:
    """Return the user's text for an error."""
    line = " ".join(str(error).split())
    if isinstance(error, FlheError):
        return line
    if isinstance(error, ModuleNotFoundError) and (missing := explain(error, f"`flhe {command}`")):
        return missing
    return f"{type(error).__name__}: {line} (FLHE_DEBUG=1 shows where)"

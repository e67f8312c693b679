"""Answer of a command: one JSON document, or tables and text; notes go to standard error.

A command returns an `Answer`, and its group prints it as `--json` and `--quiet` say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import click
import typer

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

JSON, QUIET = "flhe.json", "flhe.quiet"
"""Keys of the options in a context."""
EXIT_CODES = {
    "0": "The command is done.",
    "1": "The command failed, or it refused: one line on standard error says why.",
    "2": "The command line is wrong, or the command is not installed.",
    "128 + N": "Signal N stopped the command: 130 after Ctrl-C, 143 after SIGTERM.",
}
"""Exit codes of every command."""
UNLIMITED = 1000
"""Columns of a file or a pipe: lines are not wrapped there."""


class Exact(str):
    """Text for another program: its lines are never wrapped."""


class Answer:
    """Result of a command.

    Parameters
    ----------
    data : object
        Content of the JSON document; paths, bytes and dataclasses are allowed in it.
    shown : RenderableType
        Text and tables for a person. A line of text that begins with a space is never wrapped.
    failed : bool
        Whether the exit code is 1.
    """

    def __init__(self, data: object, *shown: RenderableType, failed: bool = False) -> None:
        self.data, self.shown, self.failed = data, shown, failed

    def show(self) -> None:
        """Print it to standard output."""
        if _asked(JSON):
            click.echo(json.dumps(self.data, indent=2, default=_plain))
        elif not _asked(QUIET):
            console = screen()
            for each in self.shown:
                _print(console, each)


def screen(*, stderr: bool = False) -> Console:
    """Return a console without colours under NO_COLOR, and without wrapping in files and pipes."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))  # rich alone would keep bold
    console = Console(stderr=stderr, color_system=None if plain else "auto")
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = UNLIMITED
    return console


def notes() -> Console:
    """Return the console for notes and progress: standard error, or nothing under `--quiet`."""
    console = screen(stderr=True)
    console.quiet = _asked(QUIET)
    return console


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner beside `text`, on a terminal only."""
    with notes().status(text):
        yield


def table(
    headings: Iterable[str], rows: Iterable[Iterable[str]] = (), *, right: bool = False, **more: Any
) -> Table:
    """Return a table in the style of all commands; cells are folded, on the right if numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, **more)
    for heading in headings:
        made.add_column(heading, overflow="fold", justify="right" if right else "left")
    for row in rows:
        made.add_row(*row)
    return made


def confirm(question: str, option: str) -> None:
    """Return if the administrator says yes; ConfigError otherwise, or without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"there is no terminal to ask on: add {option}; nothing was written")
    if not typer.confirm(question, err=True):
        raise ConfigError("you answered no: nothing was written")


def stacked(table: Table) -> RenderableType:
    """Return a table for a narrow terminal: a line for each cell, below the first of its row."""
    from rich.text import Text

    def text(cell: object) -> Text:
        found = Text.from_markup(cell) if isinstance(cell, str) else cell
        assert isinstance(found, Text)
        return Text(" ").join(found.split()) if "\n" in found.plain else found

    lines = [] if table.title is None else [text(table.title), Text()]
    headings = [text(column.header) for column in table.columns]
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        named, *names = headings
        lines.append(
            Text(": " if named.plain else "").join((named, text(first))[not named.plain :])
        )
        lines[-1].stylize("bold")
        for heading, cell in zip(names, map(text, others), strict=True):
            if cell.plain:
                lines.append(Text("  ").append_text(heading))
                lines[-1].append(": " * bool(heading.plain)).append_text(cell)
    return Text("\n").join([*lines, *([] if table.caption is None else [text(table.caption)])])


def _print(console: Console, shown: RenderableType) -> None:
    from rich.table import Table
    from rich.text import Text

    if isinstance(shown, Table):
        wide = console.options.update(max_width=UNLIMITED)
        if console.measure(shown, options=wide).maximum > console.width:
            shown = stacked(shown)
    if not isinstance(shown, str):
        console.print(shown)
        return
    for line in shown.splitlines():
        whole = isinstance(shown, Exact) or line.startswith(" ") or not console.is_terminal
        console.print(Text(line), soft_wrap=whole)


def _asked(key: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(key))


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return sorted(value) if isinstance(value, set | frozenset) else str(value)

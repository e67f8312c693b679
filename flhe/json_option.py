"""The option --json FILE, the same in every command; FILE - is standard output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = Path("-")
"""The file that means standard output."""

JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the results to FILE as JSON; -: standard output."
    ),
]
"""Type of the option."""


def console(json_file: Path | None = None, width: int | None = None) -> Console:
    """Return the console for tables and text: standard error if JSON goes to standard output.

    `width` is in columns, by default the terminal's.
    """
    from rich.console import Console

    return Console(stderr=json_file == STDOUT, width=width)


def write_json(path: Path, text: str) -> None:
    """Write a JSON document to `path`; ConfigError if that fails."""
    text = text.rstrip()
    if path == STDOUT:
        typer.echo(text)
        return
    try:
        path.expanduser().write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror})") from None

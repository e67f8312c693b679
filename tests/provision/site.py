"""Drives `flhe` as an administrator does: commands in, text and files out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from typer.main import get_command

from flhe.cli import app
from flhe.keys.roster.roster import Member, Roster
from flhe.node.store import Store

COMMANDS = get_command(app)
"""Built once: Typer's own runner builds them anew for each command."""


def run(*command: object) -> Result:
    return CliRunner().invoke(COMMANDS, [str(word) for word in command])


def good(*command: object) -> str:
    result = run(*command)
    assert result.exit_code == 0, result.output
    return result.output


def bad(*command: object, code: int = 1) -> str:
    result = run(*command)
    assert result.exit_code == code, result.output
    assert result.output.startswith("flhe: ")
    assert result.output.count("\n") == 1
    return result.output


def text_of(config: Mapping[str, object]) -> str:
    """A node config as it is typed."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def made(
    tmp: Path, *names: str, out: str = "roster", schemes: tuple[str, ...] = ("flashe",)
) -> str:
    """A roster file of new sites, each with its identity in home-NAME; returns its hash."""
    members = tuple(Member(name, Store(tmp / f"home-{name}").identity().public) for name in names)
    roster = Roster(members, Roster.default_collusion(len(members)), 2, schemes)
    (tmp / out).write_bytes(roster.to_bytes())
    return roster.hash.hex()


def backup(home: Path, file: Path, phrase: Path, do: Any = good) -> str:
    """Back a state directory up; `do` is `bad` where that is refused."""
    return str(do("keys", "backup", "--home", home, "--out", file, "--passphrase-file", phrase))


def restore(file: Path, home: Path, phrase: Path, do: Any = good) -> str:
    return str(do("keys", "restore", file, "--home", home, "--passphrase-file", phrase))

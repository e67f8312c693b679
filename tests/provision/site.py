"""Drives `flhe` as an administrator does: commands in, text and files out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from typer.main import get_command

from flhe.cli import app
from flhe.keys.roster.signed_roster import SignedRoster

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


def keygen(tmp: Path, *names: str) -> None:
    """home-NAME and NAME.site for each."""
    for name in names:
        good(
            "keygen", "--home", tmp / f"home-{name}", "--name", name, "--out", tmp / f"{name}.site"
        )


def requests(tmp: Path, *names: str) -> list[object]:
    return [word for name in names for word in ("--site", tmp / f"{name}.site")]


def made(tmp: Path, *names: str, out: str = "roster", more: tuple[object, ...] = ()) -> str:
    """A roster of new sites; returns its hash."""
    keygen(tmp, *names)
    good("roster", "new", "--out", tmp / out, *requests(tmp, *names), "--scheme", "flashe", *more)
    return load(tmp / out).roster.hash.hex()


def signed(tmp: Path, *names: str, out: str = "roster") -> str:
    """The same, signed by all."""
    pinned = made(tmp, *names, out=out)
    for name in names:
        sign(tmp / out, tmp / f"home-{name}")
    return pinned


def sign(roster: Path, home: Path, *more: object) -> str:
    hash_ = load(roster).roster.hash.hex()
    return good("roster", "sign", roster, "--home", home, "--roster-hash", hash_, *more)


def backup(home: Path, file: Path, phrase: Path, do: Any = good) -> str:
    """Back a state directory up; `do` is `bad` where that is refused."""
    return str(do("keys", "backup", "--home", home, "--out", file, "--passphrase-file", phrase))


def restore(file: Path, home: Path, phrase: Path, do: Any = good) -> str:
    return str(do("keys", "restore", file, "--home", home, "--passphrase-file", phrase))


def load(path: Path) -> SignedRoster:
    return SignedRoster.from_bytes(path.read_bytes())

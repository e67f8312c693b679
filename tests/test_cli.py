"""The command line itself: light to import, and its errors are one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup as Group
from typer.testing import CliRunner

from flhe.cli import app
from flhe.command_group import OneLineErrors
from flhe.errors import ConfigError
from tests.provision.site import COMMANDS, good


def test_import_is_light() -> None:
    code = (
        "import sys, flhe.cli\n"
        "print([m for m in ('flwr', 'torch', 'numba', 'numpy', 'ray') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def commands_below(group: Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield above
    for name, command in group.commands.items():
        if isinstance(command, Group):
            yield from commands_below(command, (*above, name))
        else:
            yield (*above, name)


def test_every_command_answers_to_h() -> None:
    found = list(commands_below(COMMANDS))
    assert {(), ("run",), ("site", "join"), ("keys", "backup")} <= set(found)
    for command in found:
        assert "Usage:" in good(*command, "-h")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [(["rnu"], "'run'"), (["site", "jion"], "'join'"), (["run", "--nodse"], "'--nodes'")],
)
def test_a_slip_is_answered_with_one_suggestion(slip: list[str], meant: str) -> None:
    result = CliRunner().invoke(app, slip)
    assert result.exit_code == 2
    assert meant in result.output
    assert result.output.count("Did you mean") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("x=1:\n must be 2"), "flhe: x=1: must be 2\n"),
        (KeyError("x"), "flhe: KeyError: 'x' (FLHE_DEBUG=1 shows where)\n"),
    ],
    ids=str,
)
def test_errors_are_one_line(error: Exception, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLHE_DEBUG", raising=False)
    commands = typer.Typer(cls=OneLineErrors)

    @commands.callback()
    def main() -> None: ...

    @commands.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(commands, ["fail"])
    assert (result.exit_code, result.output) == (1, line)
    monkeypatch.setenv("FLHE_DEBUG", "1")
    assert CliRunner().invoke(commands, ["fail"]).exception is error

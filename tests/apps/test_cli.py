"""The command line itself: light to import, and its errors are one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flhe.cli import OneLineErrors, app
from flhe.errors import ConfigError


def test_import_is_light() -> None:
    code = (
        "import sys, flhe.cli\n"
        "print([m for m in ('flwr', 'torch', 'numba', 'numpy', 'ray') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_version_and_help() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("flhe ")
    assert "run" in CliRunner().invoke(app, ["--help"]).output


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

"""The command line itself: light to import, and its errors are one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup as Group
from typer.testing import CliRunner

from flhe.cli import app
from flhe.command_group import OneLineErrors
from flhe.errors import ConfigError
from flhe_app import launch
from flhe_app.settings import Settings
from flhe_app.signals import Stopped


def test_import_is_light() -> None:
    code = (
        "import sys, flhe.cli\n"
        "print([m for m in ('flwr', 'torch', 'numba', 'numpy', 'ray') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("flhe ")


def commands_below(group: Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield above
    for name, command in group.commands.items():
        if isinstance(command, Group):
            yield from commands_below(command, (*above, name))
        else:
            yield (*above, name)


def test_every_command_answers_to_h() -> None:
    found = list(commands_below(typer.main.get_command(app)))
    assert {(), ("run",), ("roster", "sign"), ("keys", "backup")} <= set(found)
    for command in found:
        short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
        assert (short.exit_code, short.output) == (0, long.output), command
        assert "Usage:" in short.output


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        (["rnu"], "'run'"),
        (["docter"], "'doctor'"),
        (["roster", "shwo"], "'show'"),
        (["keys", "rotat"], "'rotate'"),
        (["run", "--nodse"], "'--nodes'"),
    ],
)
def test_a_slip_is_answered_with_one_suggestion(slip: list[str], meant: str) -> None:
    result = CliRunner().invoke(app, slip)
    assert result.exit_code == 2
    assert meant in result.output
    assert result.output.count("Did you mean") == 1


HANDED: dict[str, dict[str, Any]] = {
    "": {},
    "--server-optimizer fedadam --fair-q 0.5": {"server_optimizer": "fedadam", "fair_q": 0.5},
    "--algorithm fedsgd --lr 0.01": {"algorithm": "fedsgd", "client_lr": 0.01},
    "--algorithm fedsgd --optimizer sgd": {"algorithm": "fedsgd", "client_optimizer": "sgd"},
    "--top-k 0.1 --no-permute": {"top_k": 0.1, "permute": False},
    "--top-k 0.5 --permute": {"top_k": 0.5},
    "--rounds 3 --output m": {"num_rounds": 3, "sealed_model": "m"},
    "--select 0.2 --rule random --rest drop": {"select": 0.2, "rule": "random", "rest": "drop"},
}


@pytest.mark.parametrize("options", HANDED)
def test_run_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(launch, "run", lambda settings, how: seen.append(settings))
    assert CliRunner().invoke(app, ["run", *options.split()]).exit_code == 0
    assert seen == [Settings(**HANDED[options])]


def test_resume_hands_on_what_was_said_and_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, dict[str, Any]]] = []
    monkeypatch.setattr(launch, "resume", lambda path, given, how: seen.append((path, given)))
    run, options = ["run", "--resume", "DIR"], "--rounds 5 --timeout 9 --top-k 0.1 --no-permute"
    assert CliRunner().invoke(app, run).exit_code == 0
    assert CliRunner().invoke(app, [*run, *options.split()]).exit_code == 0
    given = {"num_rounds": 5, "top_k": 0.1, "permute": False}
    assert seen == [(Path("DIR"), {}), (Path("DIR"), given)]


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        stopped = Stopped(signal.SIGINT)
        stopped.hint = "resume it: flhe run --resume DIR"
        raise stopped

    monkeypatch.setattr(launch, "run", stop)
    result = CliRunner().invoke(app, ["run"])
    assert result.exit_code == 130
    assert result.output == (
        "flhe: stopped by SIGINT; everything it started is stopped too; "
        "resume it: flhe run --resume DIR\n"
    )


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

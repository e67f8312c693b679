"""`flhe run SCHEME`: options of the scheme that is named, and of no other; settings in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe.schemes import PLAIN
from flhe.schemes.registry import SCHEMES
from flhe_app import launch
from flhe_app.settings import Settings


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["run", *args], env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What `flhe run` was asked for."""
    found: list[Settings] = []
    monkeypatch.setattr(launch, "run", lambda settings, how: found.append(settings))
    return found


@pytest.mark.parametrize("name", ["", *SCHEMES.names(), PLAIN])
def test_help_fits_one_screen(name: str) -> None:
    shown = run(*filter(None, [name]), "--help").output
    assert shown.count("\n") <= 52 if name else shown.count("\n") <= 45
    assert f"flhe run {name or '[SCHEME]'} [OPTIONS]" in re.sub(
        r"Usage: \S+ run", "flhe run", shown
    )


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        ("", "flashe"),
        ("flashe", "flashe"),
        ("flashe --masking single", "flashe masking=single"),
        ("sash --unmask clients --rounds 3", "sash unmask=clients"),
        ("batchcrypt --key-bits 2048 --advance", "batchcrypt key-bits=2048 advance=true"),
        ("esafl --keys joint", "esafl keys=joint"),
        ("fedml-he --ring 8192", "fedml-he ring=8192"),
        ("plain", "plain"),
    ],
)
def test_a_scheme_has_its_own_options(seen: list[Settings], said: str, scheme: str) -> None:
    assert run(*said.split()).exit_code == 0
    assert [settings.scheme for settings in seen] == [scheme]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("rot13", "no scheme 'rot13'; there are flashe"),
        ("sash --masking single", "No such option.*--masking"),
        ("--unmask clients", "No such option.*--unmask"),
        ("plain --masking single", "No such option.*--masking"),
        ("sash --unmask nobody", "nobody"),
        ("batchcrypt --key-bits long", "long"),
    ],
)
def test_no_scheme_has_anothers(seen: list[Settings], said: str, says: str) -> None:
    result = run(*said.split())
    assert (result.exit_code, seen) == (2, [])
    assert re.search(says, result.output)


def test_one_run_leaves_no_options_to_the_next(seen: list[Settings]) -> None:
    assert run("sash", "--unmask", "clients").exit_code == 0
    assert run("--unmask", "clients").exit_code == 2
    assert len(seen) == 1


FILE = """
task = "fcn-digits"
top-k = 0.1
learning-rate = 1

[scheme]
name = "flashe"
masking = "single"
"""


def test_settings_in_a_file(seen: list[Settings], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    file = str(tmp_path / "run.toml")
    told = {"task": "fcn-digits", "learning_rate": 1.0, "scheme": "flashe masking=single"}
    assert run("--config", file).exit_code == 0
    assert run("sash", "--config", file, "--top-k", "0").exit_code == 0
    assert seen[0] == Settings(**told, top_k=0.1)
    assert seen[1] == Settings(**{**told, "scheme": "sash"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tsak = 'digits'", "tsak is no setting; `flhe run --settings` lists them"),
        ("state-dir = '/s'", "state-dir is no setting"),
        ("nodes = '5'", "nodes='5': must be int"),
        ("[scheme]\nmasking = 'single'", "needs a name"),
        ("scheme = ", "Invalid value"),
    ],
)
def test_a_file_that_says_nothing_sensible(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    result = run("--config", str(tmp_path / "run.toml"))
    assert result.exit_code == 1
    assert says in result.output
    assert run("--config", str(tmp_path / "none.toml")).exit_code == 1


def test_all_settings_are_listed() -> None:
    shown = run("--settings").output
    assert "--learning-rate" in shown
    assert "--state-dir" not in shown

"""`flhe run SCHEME`: options of the scheme that is named, and of no other; settings in a file."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe.schemes import PLAIN
from flhe.schemes.registry import SCHEMES
from flhe_app import launch
from flhe_app.run_command import How
from flhe_app.settings import Settings
from flhe_app.signals import Stopped


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


def test_options_of_a_scheme_are_described_as_in_its_docstring() -> None:
    assert re.search(r"--keys .*Source of the keys\.  \[default: round", run("esafl", "-h").output)


SAID: dict[str, dict[str, Any]] = {
    "": {"scheme": "flashe"},
    "flashe --masking single": {"scheme": "flashe masking=single"},
    "sash --unmask clients --rounds 3": {"scheme": "sash unmask=clients", "num_rounds": 3},
    "batchcrypt --key-bits 2048 --advance": {"scheme": "batchcrypt key-bits=2048 advance=true"},
    "esafl --keys joint": {"scheme": "esafl keys=joint"},
    "fedml-he --ring 8192 --select 0.2 --rule random --rest drop": {
        "scheme": "fedml-he ring=8192",
        "select": 0.2,
        "rule": "random",
        "rest": "drop",
    },
    "plain": {"scheme": "plain"},
    "--server-optimizer fedadam --fair-q 0.5": {"server_optimizer": "fedadam", "fair_q": 0.5},
    "--algorithm fedsgd --lr 0.01": {"algorithm": "fedsgd", "client_lr": 0.01},
    "--top-k 0.1 --no-permute": {"top_k": 0.1, "permute": False},
    "--top-k 0.5 --permute --output m --tensorboard board": {
        "top_k": 0.5,
        "sealed_model": "m",
        "tensorboard": "board",
    },
}


@pytest.mark.parametrize("said", SAID)
def test_options_are_handed_on(seen: list[Settings], said: str) -> None:
    assert run(*said.split()).exit_code == 0
    assert seen == [Settings(**SAID[said])]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("rot13", "no scheme 'rot13'; there are flashe"),
        ("sash --masking single", "No such option.*--masking"),
        ("--unmask clients", "No such option.*--unmask"),
        ("sash --unmask nobody", "nobody"),
        ("batchcrypt --key-bits long", "long"),
    ],
)
def test_no_scheme_has_anothers(seen: list[Settings], said: str, says: str) -> None:
    assert run("sash", "--unmask", "clients").exit_code == 0  # leaves no options to the next
    result = run(*said.split())
    assert (result.exit_code, len(seen)) == (2, 1)
    assert re.search(says, result.output)


FILE = """
task = "fcn-digits"
top-k = 0.1
learning-rate = 1

scheme = "flashe masking=single"
"""


def test_settings_in_a_file(seen: list[Settings], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    file = str(tmp_path / "run.toml")
    told = {"task": "fcn-digits", "learning_rate": 1.0, "scheme": "flashe masking=single"}
    assert run("--config", file).exit_code == 0
    assert run("sash", "--config", file, "--top-k", "0").exit_code == 0
    assert seen[0] == Settings(**told, top_k=0.1)
    assert seen[1] == Settings(**{**told, "scheme": "sash"})
    (tmp_path / "run.toml").write_text("warmup = 3")  # has no effect without an option
    assert run("--config", file, "--top-k", "0.5").exit_code == 0
    assert seen[2] == Settings(top_k=0.5, warmup=3)


def test_the_environment_names_the_data_unless_told_otherwise(
    seen: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLHE_DATA_DIR", "env")
    (tmp_path / "run.toml").write_text("data-dir = 'file'")
    for more in ([], ["--config", str(tmp_path / "run.toml")], ["--data-dir", "said"]):
        assert run(*more).exit_code == 0
    assert [settings.data_dir for settings in seen] == ["env", "file", "said"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tsak = 'digits'", "tsak is no setting; `flhe run --settings` lists them"),
        ("state-dir = '/s'", "state-dir is no setting"),
        ("nodes = '5'", "nodes='5': must be int"),
        ("[scheme]\nname = 'sash'", "must be str"),
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


def test_resume_hands_on_what_was_said_and_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, dict[str, Any], How]] = []
    monkeypatch.setattr(launch, "resume", lambda *asked: seen.append(asked))
    assert run("--resume", "DIR").exit_code == 0
    options = "--rounds 5 --top-k 0.1 --no-permute --report r --tensorboard board"
    assert run("--resume", "DIR", *options.split()).exit_code == 0
    given = {"num_rounds": 5, "top_k": 0.1, "permute": False, "tensorboard": "board"}
    (path, none, _), (again, said, how) = seen
    assert (path, again, none, said) == (Path("DIR"), Path("DIR"), {}, given)
    assert how.report_path == "r"


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        stopped = Stopped(signal.SIGINT)
        stopped.hint = "resume it: flhe run --resume DIR"
        raise stopped

    monkeypatch.setattr(launch, "run", stop)
    result = run()
    assert result.exit_code == 130
    assert result.output == (
        "flhe: stopped by SIGINT; everything it started is stopped too; "
        "resume it: flhe run --resume DIR\n"
    )

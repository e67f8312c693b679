"""Every command of `flhe`: its help, its examples, and what it prints for a person and a program.

It is light to import, and its errors are one line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
import typer
from click.testing import CliRunner, Result
from rich.table import Table

from flhe.answer import EXIT_CODES, Answer, stacked
from flhe.command_group import OneLineErrors
from flhe.errors import ConfigError
from flhe.node import store
from flhe.provision.federation.published import Published
from flhe_lab.advise import calibration
from flhe_lab.tables.store import Store
from tests import prose
from tests.deploy.test_shelf import key_files
from tests.node.test_backup import epoch, sealed_by
from tests.provision.site import COMMANDS, good, made, run
from tests.sim.advise.test_advise import SPEED

LONGEST = 25
"""Most words of a sentence of help."""


def leaves(group: click.Group, above: str = "flhe") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


LEAVES = dict(leaves(COMMANDS))


def examples(command: click.Command) -> list[str]:
    """The examples of a command, each in one line."""
    title, *lines = (command.epilog or "").replace("\\\n\n", "").split("\n\n")
    assert title == "Examples:"
    return [line.removeprefix("$ ") for line in lines]


EXAMPLES = [each for command in LEAVES.values() for each in examples(command)]
SERVERS = ("flhe gate", "flhe shelf serve")
"""Commands that serve until a signal ends them, and so have no answer."""
SLOW = (
    "run",
    "gate",
    "shelf serve",
    "site start",
    "tables flashe",
    "audit",
    "bench --round",
    "bench --memory",
    "compare-privacy",
    "rehearse",
    "crowd",
)
"""Examples that take long, or never end: they are parsed, and not run."""
QUICK = [each for each in EXAMPLES if not each.startswith(tuple(f"flhe {slow}" for slow in SLOW))]
NARROW = {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}
"""A terminal of 80 columns where nobody wants colours."""


def invoke(words: list[str], **env: str | None) -> Result:
    return CliRunner().invoke(COMMANDS, words, prog_name="flhe", env=env)


# --- help ---


@pytest.mark.parametrize("path", LEAVES)
def test_help_has_examples_that_parse_and_fit(path: str) -> None:
    shown = invoke([*path.split()[1:], "-h"], COLUMNS="80", NO_COLOR="1").output
    assert "Usage: " + path in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    found = examples(LEAVES[path])
    assert found
    for example in found:
        assert example in re.sub(r"\\ *\n ", "", shown)  # otherwise in one line
        words = shlex.split(example.partition(" > ")[0])
        assert " ".join(words).startswith(path)
        LEAVES[path].make_context(path, words[len(path.split()) :]).close()


@pytest.mark.parametrize("path", ["flhe", *LEAVES])
def test_help_is_plain_english(path: str) -> None:
    command = LEAVES.get(path, COMMANDS)
    context = click.Context(command, info_name=path)
    given = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    texts = [command.help or "", *(str(getattr(each, "help", None) or "") for each in given)]
    texts = [text.partition("  [default: ")[0] for text in texts]
    assert all(texts)
    assert not prose.FIRST.match(texts[0])
    for sentence in (each for text in texts for each in prose.sentences(text)):
        assert prose.words(sentence) <= LONGEST, sentence
        assert not prose.BANNED.search(sentence), sentence
        assert not prose.OPENINGS.match(sentence), sentence
    assert all(text.endswith(".") for text in texts)


def test_all_commands_are_in_panels_and_all_have_the_same_options() -> None:
    assert all(getattr(each, "rich_help_panel", "") for each in COMMANDS.commands.values())
    for path, command in LEAVES.items():
        names = {name for each in command.params for name in each.opts}
        assert {"--quiet", "-q", "--no-color"} <= names
        assert ("--json" in names) == (path not in SERVERS)


# --- what is printed ---


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all that examples read."""
    place = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        here = Path()
        pinned = made(here, "a", "b", "c", out="sites", schemes=("esafl",))
        Path("home-a").rename("state")
        Path("phrase").write_text("correct horse battery staple\n")
        Path("phrase").chmod(0o600)
        store.Store(Path("state")).write(f"epochs/{epoch(1).id.hex()}", epoch(1).to_bytes())
        Path("model.flhe").write_bytes(sealed_by(epoch(1)))
        phrase = ("--passphrase-file", "phrase")
        good("keys", "backup", "--home", "state", "--out", "a.backup", *phrase)
        good("permit", "--home", "state")
        Path("node.toml").write_text('flhe-home = "state"\nflhe-trust = "first-use"\n')
        Path("app.fab").write_bytes(b"an app")
        key_files(here, "reviewer").chmod(0o600)
        Path("hash").write_text(pinned)
        Path("terms").write_text(federation(here))
    return place


def federation(here: Path) -> str:
    """cardio, site-a to site-d, d.card, and cardio.flhe of the first three; returns its terms' hash."""
    for name in "abcd":
        good("site", "init", "cardio", "--name", name, "--dir", f"site-{name}", "--yes")
    words = ("cardio", "--address", "localhost:8000", "--scheme", "flashe")
    good("federation", "new", *words, "--reviewer", "reviewer.pub")
    cards = [here / f"site-{name}" / f"{name}.card" for name in "abc"]
    good("federation", "add", "cardio", *cards, "--yes")
    good("federation", "publish", "cardio")
    shutil.copy("site-d/d.card", "d.card")
    shutil.copy("cardio/cardio.flhe", "cardio.flhe")
    return Published.read(here / "cardio.flhe").terms.hex()


def apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A witness of its own for each copy: of one witness, all but one copy are rolled back."""
    path.mkdir(mode=0o700)
    monkeypatch.setenv("FLHE_WITNESS", str(path))


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HASH", (here / "hash").read_text())
    monkeypatch.setenv("TERMS", (here / "terms").read_text())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    apart(tmp_path / "witness", monkeypatch)
    Store(calibration.cache_folder()).put("calibration", SPEED.to_json())
    return here


def typed(example: str, *more: str, **env: str | None) -> Result:
    """Run an example, without the files that it writes."""
    words = [os.path.expandvars(word) for word in shlex.split(example.partition(" > ")[0])][1:]
    for option, value in pairwise(words):
        if option in ("--out", "--output", "--new-home") and Path(value).exists():
            Path(value).unlink()
    result = invoke([*(word for word in words if word != "--json"), *more], **env)
    assert result.exit_code in ((0, 1) if "doctor" in words else (0,)), result.output
    return result


@pytest.mark.parametrize("example", QUICK)
def test_a_person_reads_80_columns_and_a_program_one_document(
    example: str, prepared: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = typed(example, **NARROW).stdout
    assert shown
    assert "\x1b" not in shown
    for line in shown.splitlines():  # commands and files are not broken
        assert len(line) <= 80 or line.startswith("  ") or " > " in example, line
    shutil.rmtree(place)
    os.chdir(shutil.copytree(prepared, place))
    apart(place.with_name("other"), monkeypatch)
    asked = typed(example, "--json", "--quiet")
    assert json.loads(asked.stdout)
    assert asked.stderr == ""


@pytest.mark.usefixtures("place")
def test_quiet_prints_errors_only() -> None:
    for example in ("flhe doctor --node-config node.toml", "flhe permit --home state"):
        assert typed(example, "--quiet").output == ""
    wrong = run("log", "--home", "none", "--quiet")
    assert wrong.stdout == ""
    assert wrong.stderr.startswith("flhe: ")


@pytest.mark.usefixtures("place")
def test_no_escape_codes_without_a_terminal_or_with_a_dumb_one() -> None:
    doctor = ["doctor", "--node-config", "node.toml"]
    for words in (["--help"], ["federation", "ad"], doctor):
        for env in ({}, {"TERM": "dumb"}, {"NO_COLOR": "1"}):
            assert "\x1b" not in invoke(words, **env).output
    assert "\x1b" in invoke(doctor, FORCE_COLOR="1", TERM="xterm", NO_COLOR=None).stdout


def test_a_table_is_stacked_where_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("name", "size\nB", "", title="files", caption="all of them")
    table.add_row("[b]one[/b]", "1\n2", "")
    table.add_row("two", "x" * 60, "more")
    narrow = f"files\n\nname: one\n  size B: 1 2\nname: two\n  size B: {'x' * 60}\n  more\n"
    assert str(stacked(table)) == f"{narrow}all of them"
    for columns, fits in (("70", False), ("100", True), ("", True)):  # "": a file or a pipe
        monkeypatch.setenv("COLUMNS", columns)
        Answer({}, table).show()
        assert (narrow not in capsys.readouterr().out) == fits


# --- exit codes, completion ---


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("site", "-h").exit_code == run("-h").exit_code == 0
    assert run("site", "join", "none").exit_code == 1
    assert run("keygen").exit_code == 1
    assert run("site", "join").exit_code == run("no-command").exit_code == 2
    monkeypatch.setattr(Path, "is_dir", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run("log", "--home", "state").exit_code == 130
    assert set(EXIT_CODES) == {"0", "1", "2", "128 + N"}


def test_completion() -> None:
    env = {"_FLHE_COMPLETE": "complete_bash", "COMP_WORDS": "flhe fed", "COMP_CWORD": "1"}
    assert invoke([], **env).output.split() == ["federation"]
    assert "--show-completion" in invoke(["--help"]).output


# --- the root ---


def test_import_is_light() -> None:
    code = (
        "import sys, flhe.cli\n"
        "print([m for m in ('flwr', 'torch', 'numba', 'numpy', 'ray') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [(["rnu"], "'run'"), (["site", "jion"], "'join'"), (["run", "--nodse"], "'--nodes'")],
)
def test_a_slip_is_answered_with_one_suggestion(slip: list[str], meant: str) -> None:
    result = run(*slip)
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

    group = typer.main.get_command(commands)
    result = CliRunner().invoke(group, ["fail"])
    assert (result.exit_code, result.output) == (1, line)
    monkeypatch.setenv("FLHE_DEBUG", "1")
    assert CliRunner().invoke(group, ["fail"]).exception is error

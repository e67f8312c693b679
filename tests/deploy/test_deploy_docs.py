"""The pages for administrators name every setting and every refusal, and commands as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from flhe.cli import app
from flhe.keys.roster.limits import known
from flhe.node.policy import settings
from flhe.node.settings import OWN
from flhe.provision import units
from flhe.provision.site import start
from flhe.provision.site.layout import GATE_UNIT, GATE_USER, UNIT, USER, Layout
from flhe.wire import codes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "deploy.md").read_text(encoding="utf-8")
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = SHELL.findall(PAGE)


def commands(page: str) -> list[list[str]]:
    """Words of each command of ours in a page's blocks, and of those in its text."""
    lines = [
        line for block in SHELL.findall(page) for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`(flhe [^`]+)`", page)
    found = []
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words[:1] in (["flhe"], [".venv/bin/flhe"]) and words[1:2] != ["..."]:
                found.append(words)
    return found


@pytest.mark.parametrize(
    ("page", "most"), [("deploy", 14), ("how-to/run-a-site", 6), ("migrate", 2)]
)
def test_commands_exist_with_these_options(page: str, most: int) -> None:
    whole: click.Command = typer.main.get_command(app)
    found = commands((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) >= most
    for words in found:
        command, at = whole, 1
        while isinstance(command, click.Group) and at < len(words):
            assert words[at] in command.commands
            command, at = command.commands[words[at]], at + 1
        options = {
            name for each in command.get_params(click.Context(command)) for name in each.opts
        }
        assert {word for word in words[at:] if word.startswith("-")} <= options, words


STEPS = {
    int(number): text
    for number, text in re.findall(r"^## (\d)\. (.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
}


def test_no_step_needs_a_later_one() -> None:
    assert sorted(STEPS) == list(range(1, 7))
    for number, text in STEPS.items():
        needed = {int(each) for each in re.findall(r"steps? (\d)", text)}
        assert all(each <= number for each in needed), number


def test_the_page_is_short_and_its_settings_are_in_the_file() -> None:
    assert len(PAGE.splitlines()) <= 150
    assert sorted(OWN) == sorted(
        {name.removeprefix("flhe-") for name in settings()} - known().keys()
    )
    assert all(limit.help for limit in known().values())


def test_every_refusal_is_listed() -> None:
    page = (DOCS / "how-to" / "read-a-refusal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{4}) `(flhe/[a-z-]+)` \|", page, re.MULTILINE)
    known = [found for code in range(1000, 1100) if (found := codes.find(code))]
    assert rows == [(str(each.code), each.slug) for each in known]


def test_the_users_of_the_units_are_made() -> None:
    (superlink,) = re.findall(r"^User=(.*)$", units.read("flower-superlink.service"), re.MULTILINE)
    lines = [line for block in BLOCKS for line in block.splitlines()]
    assert any(line.startswith("useradd") and line.endswith(f" {superlink}") for line in lines)
    assert f"User={USER}\n" in units.read(UNIT)  # `flhe site init` makes it
    assert f"User={GATE_USER}\n" in units.read(GATE_UNIT)
    assert f"SupplementaryGroups={USER}\n" in units.read(GATE_UNIT)
    assert USER != GATE_USER


def test_a_node_starts_its_gate_and_reaches_nothing_else() -> None:
    lines = units.read(UNIT).splitlines()
    assert {"IPAddressDeny=any", "IPAddressAllow=localhost"} <= set(lines)
    gate = GATE_UNIT.replace("@", "@%i")
    assert [line for line in lines if line.startswith("Wants=") and gate in line]
    assert [line for line in lines if line.startswith("After=") and gate in line]
    both = [set(units.read(name).splitlines()) for name in (UNIT, GATE_UNIT)]
    assert [line for line in both[0] & both[1] if line.startswith("EnvironmentFile=")]
    confined = {
        line for line in both[0] if re.match("Protect|Restrict[A-Z]|Private|System|Lock", line)
    }
    assert confined <= both[1]
    assert not [line for line in both[1] if line.startswith("IPAddress")]


@pytest.mark.parametrize("unit", ["flower-superlink.service", UNIT, GATE_UNIT])
def test_units_are_confined(unit: str, tmp_path: Path) -> None:
    lines = units.read(unit).splitlines()
    assert {"ProtectSystem=strict", "NoNewPrivileges=yes", "PrivateTmp=yes"} <= set(lines)
    assert {"UMask=0077", "LimitCORE=0", "StateDirectoryMode=0700"} <= set(lines)
    assert "--insecure" not in " ".join(lines)
    layout = Layout.of("cardio", tmp_path)
    assert "--trusted-entities" in start.options(layout, "h:1", start.FIRST_PORT)

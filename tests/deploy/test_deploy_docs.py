"""The pages for administrators name every setting and every refusal, and commands as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from flhe.cli import app
from flhe.node.policy import settings
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
    assert sorted(STEPS) == list(range(1, 9))
    for number, text in STEPS.items():
        needed = {int(each) for each in re.findall(r"steps? (\d)", text)}
        assert all(each <= number for each in needed), number


def test_every_setting_of_a_node_is_listed() -> None:
    rows = re.findall(r"^\| `(flhe-[a-z-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(settings())


def test_every_refusal_is_listed() -> None:
    page = (DOCS / "how-to" / "read-a-refusal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{4}) `(flhe/[a-z-]+)` \|", page, re.MULTILINE)
    known = [found for code in range(1000, 1100) if (found := codes.find(code))]
    assert rows == [(str(each.code), each.slug) for each in known]


@pytest.mark.parametrize("unit", ["flower-superlink.service", "flower-supernode@.service"])
def test_what_a_unit_needs_is_made(unit: str) -> None:
    """Its user, and each file in /etc/flhe that it names, keys so that the user can read them."""
    text = (ROOT / "deploy" / unit).read_text(encoding="utf-8")
    (user,) = re.findall(r"^User=(.*)$", text, re.MULTILINE)
    lines = [line for block in BLOCKS for line in block.splitlines()]
    assert any(line.startswith("useradd") and line.endswith(f" {user}") for line in lines)
    for name in set(re.findall(r"/etc/flhe/([\w.%-]+)", text)):
        file = name.replace("%i", "cardio")
        makes = [
            line for line in lines if re.match("install|ssh-keygen|chown", line) and file in line
        ]
        assert makes or f"`/etc/flhe/{file}`" in PAGE, file
        assert not file.endswith(".key") or any(user in line for line in makes), file


@pytest.mark.parametrize("unit", ["flower-superlink.service", "flower-supernode@.service"])
def test_units_are_confined(unit: str) -> None:
    lines = (ROOT / "deploy" / unit).read_text(encoding="utf-8").splitlines()
    assert {"ProtectSystem=strict", "NoNewPrivileges=yes", "PrivateTmp=yes"} <= set(lines)
    assert {"UMask=0077", "LimitCORE=0", "StateDirectoryMode=0700"} <= set(lines)
    command = " ".join(line.strip(" \\") for line in lines if not line.startswith("#"))
    assert "--insecure" not in command
    guard = "--enable-supernode-auth" if "superlink" in unit else "--trusted-entities"
    assert guard in command

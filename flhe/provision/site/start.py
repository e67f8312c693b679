"""`flhe site start`: check the node, then become its SuperNode."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from flhe.answer import Answer, notes
from flhe.errors import ConfigError
from flhe.provision import doctor
from flhe.provision.checks import Check
from flhe.provision.federation.published import Published
from flhe.provision.flower_config import parse
from flhe.provision.site.layout import Layout, current_user

FIRST_PORT, PORTS = 9094, 100
"""Ports on 127.0.0.1 for a SuperNode's own processes: the first that is free."""
FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def examine(layout: Layout) -> list[Check]:
    """Return the checks of a site's node, with the SuperLink that it will use."""
    return doctor.examine(parse(f"{layout.settings}"), joined(layout).address, layout.authority)


def joined(layout: Layout) -> Published:
    """Return the federation's file in force; ConfigError before the site has joined."""
    if not layout.joined.exists():
        later = (
            "the coordinator's file with all signatures" if layout.agreed.exists() else "its file"
        )
        raise ConfigError(
            f"this site has not joined {layout.name} yet: flhe site join {layout.name}.flhe, {later}"
        )
    return Published.read(layout.joined)


def command(layout: Layout, port: int) -> list[str]:
    """Return the command line of the SuperNode."""
    script = Path(sys.executable).parent / "flower-supernode"
    said = options(layout, joined(layout).address, port)
    return [f"{script}", *(f"{word}" for pair in said.items() for word in pair)]


def options(layout: Layout, superlink: str, port: int) -> dict[str, object]:
    """Return the options of `flower-supernode`: TLS, a key, reviewed apps only, these settings."""
    return {
        "--superlink": superlink,
        "--root-certificates": layout.authority,
        "--auth-supernode-private-key": layout.node_key,
        "--trusted-entities": layout.reviewers,
        "--host": "127.0.0.1",
        "--port": port,
        "--node-config": layout.settings,
    }


def start(layout: Layout, *, foreground: bool) -> Answer:
    """Check the node and replace this process by its SuperNode, if the checks find no failure.

    Where a systemd unit is installed, the answer has the command that starts it, unless
    `foreground` is asked for. Raises ConfigError: the site has not joined, or root runs it.
    """
    joined(layout)
    unit = f"flower-supernode@{layout.name}"
    if layout.unit is not None and layout.unit.exists() and not foreground:
        line = f"systemctl enable --now {unit}"
        log = f"journalctl -u {unit} -f"
        return Answer(
            {"command": line, "log": log}, f"Start the node as a service:\n   {line}\n   {log}"
        )
    if layout.user and current_user() != layout.user:
        raise ConfigError(
            f"expected user {layout.user}, got another one: sudo -u {layout.user} flhe site start "
            f"{layout.name} --foreground"
        )
    found = examine(layout)
    if any(check.level == "fail" for check in found):
        return Answer(found, *doctor.lines(found), failed=True)
    out = notes()
    for check in doctor.lines(found):
        out.print(check)
    become(command(layout, free_port()), {**FLOWER, "FLWR_HOME": f"{layout.home}-flower"})
    return Answer(found)


def become(words: list[str], defaults: dict[str, str]) -> None:
    """Replace this process by a command; `defaults` hold where the environment has no value."""
    os.umask(0o077)
    os.execve(words[0], words, {**defaults, **os.environ})  # noqa: S606  # no shell


def free_port() -> int:
    """Return the first free port; ConfigError if all are taken."""
    for port in range(FIRST_PORT, FIRST_PORT + PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are taken: end a process")

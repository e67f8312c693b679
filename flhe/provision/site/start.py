"""`flhe site start`: check the node, then become its SuperNode."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flhe.answer import Answer, notes
from flhe.errors import ConfigError, StoreError
from flhe.provision import doctor, sites
from flhe.provision.checks import Check
from flhe.provision.federation.published import Published
from flhe.provision.flower_config import parse
from flhe.provision.site.layout import Layout
from flhe.wire import files

FIRST_PORT, PORTS = 9094, 100
"""Ports on 127.0.0.1 for a SuperNode's own processes: the first that is free."""
GATE_S = 10.0
"""Seconds in which the gate must listen."""
RUNNING = "supernode-lock"
"""File of a state directory that a running SuperNode holds locked."""
FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def examine(layout: Layout, gate: str) -> list[Check]:
    """Return the checks of a site's node, and of its way out: the site's gate at HOST:PORT."""
    joined(layout)
    found = doctor.examine(parse(f"{layout.settings}"), gate, layout.gate_certificate)
    path, card = layout.card()
    if sites.has_identity(layout.home) and sites.existing(layout.home).public != card.public:
        says = f"{path} is of another identity than {layout.home}: the gate would stop each reply"
        mend = f"move it away, then: flhe site init {layout.name} --name {card.name}"
        found.append(Check("card", "fail", says, mend))
    mend = f"start this site's gate first: flhe gate {layout.name}"
    return [replace(c, mend=mend) if (c.name, c.level) == ("tls", "fail") else c for c in found]


def joined(layout: Layout) -> Published:
    """Return the coordinator's file in force; ConfigError before the site has joined."""
    if not layout.joined.exists():
        raise ConfigError(
            f"this site has not joined {layout.name} yet: flhe site join {layout.name}.flhe, the "
            "coordinator's file"
        )
    return Published.read(layout.joined)


def command(layout: Layout, gate: str, port: int) -> list[str]:
    """Return the command line of the SuperNode."""
    script = Path(sys.executable).parent / "flower-supernode"
    said = options(layout, gate, port)
    return [f"{script}", *(f"{word}" for pair in said.items() for word in pair)]


def options(layout: Layout, gate: str, port: int) -> dict[str, object]:
    """Return the options of `flower-supernode`: the gate, a key, reviewed apps only, these settings."""
    return {
        "--superlink": gate,
        "--root-certificates": layout.gate_certificate,
        "--auth-supernode-private-key": layout.node_key,
        "--trusted-entities": layout.reviewers,
        "--host": "127.0.0.1",
        "--port": port,
        "--node-config": layout.settings,
    }


def start(layout: Layout, gate: str, port: int, *, foreground: bool) -> Answer:
    """Check the node and replace this process by its SuperNode, if the checks find no failure.

    Where a systemd unit is installed, the answer has the command that starts it, unless
    `foreground` is asked for. Raises ConfigError: the site has not joined, or root runs it.
    """
    joined(layout)
    unit = f"flower-supernode@{layout.name}"
    if layout.unit is not None and layout.unit.exists() and not foreground:
        # Restarted where it runs: node and gate read a joined file once, at their start.
        line = f"systemctl enable {unit} && systemctl restart {unit}"
        log = f"journalctl -u {unit} -f"
        return Answer(
            {"command": line, "log": log}, f"Start the node as a service:\n   {line}\n   {log}"
        )
    layout.check_user(layout.user, "site start --foreground")
    _await(gate)
    found = examine(layout, gate)
    if any(check.level == "fail" for check in found):
        return Answer(found, *doctor.lines(found), failed=True)
    _hold(layout.home)
    out = notes()
    for check in doctor.lines(found):
        out.print(check)
    words = command(layout, gate, port or free_port())
    become(words, {**FLOWER, "FLWR_HOME": f"{layout.home}-flower"})
    return Answer(found)


def _await(gate: str) -> None:
    """Wait until the gate listens, for GATE_S seconds: a service starts it a moment before."""
    host, _, port = gate.rpartition(":")
    until = time.monotonic() + GATE_S
    while time.monotonic() < until:
        with suppress(OSError, ValueError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(0.2)


def _hold(home: Path) -> None:
    """Lock a state directory until the SuperNode ends; ConfigError if another one works on it.

    Two nodes on one directory would be one site twice.
    """
    with files.os_errors("lock"):
        handle = os.open(home / RUNNING, os.O_RDWR | os.O_CREAT | files.SAFE, 0o600)
    os.set_inheritable(handle, True)  # the SuperNode keeps it
    try:
        files.hold(handle, timeout=0.0)
    except StoreError:
        os.close(handle)
        raise ConfigError(
            f"{home}: another SuperNode works on this directory: end it, or give each node a "
            "directory and an identity of its own"
        ) from None


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

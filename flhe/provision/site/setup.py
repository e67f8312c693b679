"""`flhe site init`: a plan of what is missing, then identity, SuperNode key, settings and unit."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flhe.answer import Answer, confirm, notes, table
from flhe.errors import ConfigError
from flhe.gate import certificate
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.roster import Member
from flhe.node.store import Store
from flhe.provision import node_key, public_files, units
from flhe.provision.federation.card import Card
from flhe.provision.site import node_file
from flhe.provision.site.layout import CARD, GATE_UNIT, UNIT, Layout
from flhe.wire import files

_USERADD = "useradd --system --create-home --shell /usr/sbin/nologin --home-dir"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to make: what it is, where, who may read it, and how it is made."""

    what: str
    where: str
    access: str
    make: Callable[[], None]


def init(layout: Layout, site: str, *, yes: bool) -> Answer:
    """Make the files that are missing, once the plan is confirmed; existing ones stay as they are.

    Raises ConfigError: nothing is missing, an invalid name, a card of another name, or an answer of
    no; StoreError: a directory that is open to others.
    """
    Member(site, Identity(bytes(32)).public)  # first refuse a name that no roster takes
    found = sorted(layout.config.glob(f"*{CARD}")) if layout.config.is_dir() else []
    if [path for path in found if path.name != site + CARD]:
        raise ConfigError(
            f"{layout.config}: this site is {found[0].stem} there, not {site}; name another "
            "federation, or another --dir"
        )
    if layout.config.is_dir() and not layout.user:
        files.make_private(layout.config, f"{layout.config}")
    steps = plan(layout, site)
    if not steps:
        raise ConfigError(
            f"{layout.config}: {site} is set up already, and nothing was written; look at it with "
            f"`flhe site status {layout.name}`"
        )
    rows = [(step.what, step.where, step.access) for step in steps]
    notes().print(table(("to make", "where", "who may read it"), rows))
    if not yes:
        confirm("Make these?", "--yes")
    with files.private_umask():
        for step in steps:
            step.make()
    return _answer(layout, steps)


def plan(layout: Layout, site: str) -> list[Step]:
    """Return what is missing, in the order in which it is made."""
    owner, card = layout.user or "you", layout.config / f"{site}{CARD}"
    readers = f"0640, root and {owner}" if layout.user else "0600, you"
    steps = []
    users = (("node", layout.user, layout.home), ("gate", layout.gate_user, layout.gate_home))
    for what, user, home in users:
        if user and not _exists(user):
            make = partial(_run, f"{_USERADD} {home.parent} {user}")
            steps.append(Step(f"user of the {what}", user, "no login", make))
    if not layout.config.is_dir():
        access = f"0750, root and {owner}" if layout.user else "0700, you"
        where = f"{layout.config}"
        steps.append(Step("directory of settings", where, access, lambda: _directory(layout)))
    if not (layout.home / "identity.key").exists():
        make_identity = lambda: _identity(layout)  # noqa: E731
        steps.append(Step("identity", f"{layout.home}", f"0700, {owner}", make_identity))
    if not layout.node_key.exists():
        where = f"{layout.node_key}"
        steps.append(Step("SuperNode's key", where, f"0600, {owner}", lambda: _node_key(layout)))
    if not layout.gate_certificate.exists():
        where, keeper = f"{layout.gate_certificate}", layout.gate_user or "you"
        access = f"its key 0600, {keeper}"
        steps.append(Step("gate's certificate", where, access, lambda: _gate(layout)))
    if not layout.settings.exists():
        text = node_file.render(layout.home, layout.roster, layout.witness).encode()
        write = lambda: layout.write(layout.settings, text)  # noqa: E731
        steps.append(Step("settings", f"{layout.settings}", readers, write))
    for name in (GATE_UNIT, UNIT):
        unit = layout.unit and layout.unit.with_name(name)
        if unit and not unit.exists():
            write_unit = partial(public_files.replace, unit, units.read(name).encode())
            steps.append(Step("systemd unit", f"{unit}", "0644", write_unit))
    if not card.exists():
        make_card = lambda: _card(layout, site, card)  # noqa: E731
        steps.append(Step("card for the coordinator", f"{card}", readers, make_card))
    return steps


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _run(command: str) -> None:
    try:
        subprocess.run(command.split(), check=True, capture_output=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        raise ConfigError(
            f"`{command}` failed: type it yourself, as root, then `flhe site init` again"
        ) from None


def _directory(layout: Layout) -> None:
    layout.config.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if layout.user:
        layout.config.parent.chmod(0o755)  # the node's user passes through it
    layout.make_config(layout.config)


def _identity(layout: Layout) -> None:
    with layout.as_user():
        Store(layout.home).identity()


def _node_key(layout: Layout) -> None:
    node_key.make(layout.node_key)
    if layout.user:
        entry = pwd.getpwnam(layout.user)
        os.chown(layout.node_key, entry.pw_uid, entry.pw_gid)


def _gate(layout: Layout) -> None:
    certificate.make(layout.config)
    layout.write(layout.gate_certificate, layout.gate_certificate.read_bytes())
    if layout.user and layout.gate_user:
        gate = pwd.getpwnam(layout.gate_user)
        os.chown(layout.config / certificate.KEY, gate.pw_uid, gate.pw_gid)


def _card(layout: Layout, site: str, path: Path) -> None:
    with layout.as_user():
        identity = Store(layout.home).identity()
        point = node_key.public_of(layout.node_key)
    card = Card.make(Enrolment.make(site, identity), point, identity)
    layout.write(path, card.to_bytes())


def _answer(layout: Layout, steps: list[Step]) -> Answer:
    path, card = layout.card()
    text = f"""{len(steps)} things made.

{fingerprint.shown("key", card.public)}

1. Send {path} to the coordinator; it holds no secret.
2. The coordinator calls you. Read the words to them.
3. They send {layout.name}.flhe back: flhe site join {layout.name}.flhe
Back the identity up now: flhe keys backup --home {layout.home} --out {card.name}.backup"""
    words = " ".join(fingerprint.lines(card.public))
    data = {"site": card.name, "key": card.public, "words": words, "card": path}
    made = [{"what": step.what, "where": step.where} for step in steps]
    return Answer({**data, "settings": layout.settings, "home": layout.home, "made": made}, text)

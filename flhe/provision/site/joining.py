"""`flhe site join`: compare the federation's file, sign its roster, and write what the node needs.

A node takes a roster that every member has signed. So a site joins twice: the first file makes the
site's signature, which its card takes back to the coordinator; the second has all signatures. The
site asks for nothing at the second, if all that it agreed to is unchanged.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from flhe.answer import Answer, notes
from flhe.errors import ConfigError, ProtocolError
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.provision import rosters, sites
from flhe.provision.confirm import confirm
from flhe.provision.federation import reviewers
from flhe.provision.federation.card import Card
from flhe.provision.federation.published import Published, difference
from flhe.provision.site import node_file
from flhe.provision.site.layout import Layout


@dataclass(frozen=True, slots=True)
class Known:
    """The coordinator's files that a site keeps: the one in force, and the last one agreed to."""

    joined: Published | None
    agreed: Published | None

    @classmethod
    def of(cls, layout: Layout) -> Known:
        """Read both; ConfigError if one is damaged."""
        paths = (layout.joined, layout.agreed)
        return cls(*(Published.read(path) if path.exists() else None for path in paths))

    @property
    def last(self) -> Published | None:
        """The later file of the two."""
        found = [file for file in (self.joined, self.agreed) if file is not None]
        return max(found, key=lambda file: file.serial) if found else None


def join(layout: Layout, file: Published, roster_hash: str) -> Answer:
    """Agree to a federation's file, and write the node's files once all members have signed.

    `roster_hash` says that the administrator has compared the words; "" asks on the terminal.
    Raises ConfigError: the file is not for this site, of another coordinator, or an older one; the
    hash is another; or an answer of no. Nothing is written then.
    """
    path, card = layout.card()
    with layout.as_user():
        identity = sites.existing(layout.home)
    last = Known.of(layout).last
    check(layout, file, last, identity)
    if last is None or last.terms != file.terms:
        _compare(file, last, roster_hash)
    elif roster_hash:
        rosters.check_hash(file.roster.roster, roster_hash)
    signed = file.roster.signed(identity)
    agreed = signed.signatures[identity.public]
    before = os.umask(0o077)
    try:
        mine = Card.make(card.enrolment, card.node_key, identity, agreed)
        layout.write(path, mine.to_bytes())
        if signed.missing:
            layout.write(layout.agreed, file.to_bytes())
        else:
            _write(layout, file, signed)
    finally:
        os.umask(before)
    return _answer(layout, file, signed)


def check(layout: Layout, file: Published, last: Published | None, identity: Identity) -> None:
    """Refuse a file that this site must not follow; ConfigError."""
    if file.name != layout.name:
        raise ConfigError(
            f"the file is of the federation {file.name}, this site is set up for {layout.name}: "
            f"`flhe site init {file.name} --name SITE` first"
        )
    try:
        file.roster.roster.rank(identity.public)
    except ProtocolError as error:
        raise ConfigError(
            f"the federation's file does not list this site: {error}; send the card to the "
            "coordinator"
        ) from None
    if last is None:
        return
    if file.coordinator != last.coordinator:
        raise ConfigError(
            f"expected the coordinator's key {last.coordinator.hex()[:16]}, got "
            f"{file.coordinator.hex()[:16]}: call the coordinator. For another coordinator, set the "
            "site up in another --dir"
        )
    if file.serial < last.serial:
        raise ConfigError(
            f"expected number {last.serial} or later, got {file.serial}: this is an older file; ask "
            "the coordinator for the last one"
        )
    if file.serial == last.serial and file != last:
        raise ConfigError(
            f"got two different files with the number {file.serial}: call the coordinator, who must "
            "publish again"
        )
    rosters.check_revoked(last.roster.roster, file.roster.roster)


def _compare(file: Published, last: Published | None, roster_hash: str) -> None:
    """Show all of a file and what differs, and have the words compared."""
    roster = file.roster.roster
    out = notes()
    out.print(rosters.table(file.roster))
    for line in _facts(file):
        out.print(Text(line), soft_wrap=True)
    if last is not None:
        out.print(Text(f"\nChanges:\n{difference(last, file)}"), soft_wrap=True)
    out.print(_words(file))
    if roster_hash:
        rosters.check_hash(roster, roster_hash)
    else:
        confirm(
            "Have you compared all of these words by telephone, and do they agree?",
            f"--roster-hash {roster.hash.hex()[:8]}... (all of it, once the words are compared)",
        )


def _facts(file: Published) -> list[str]:
    return [
        f"Federation {file.name}, number {file.serial}; SuperLink {file.address}",
        *rosters.bounds(file.roster.roster).splitlines(),
        "These bounds only tighten this site's own settings; node.toml stays as it is.",
    ]


def _words(file: Published) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for heading in ("compare with", "what", "words"):
        table.add_column(heading, overflow="fold")
    rows = [
        ("every other site", "hash of the roster", file.roster.roster.hash),
        ("the coordinator", "coordinator's key", file.coordinator),
        *(("the reviewer", "reviewer's key", key) for key in file.reviewers),
    ]
    for other, what, data in rows:
        table.add_row(other, what, "\n".join(fingerprint.lines(data)))
    return table


def _write(layout: Layout, file: Published, signed: SignedRoster) -> None:
    """Write the node's files; the settings change in one line, the roster's hash."""
    roster_hash = file.roster.roster.hash
    settings = node_file.pin(layout.settings.read_text(encoding="utf-8"), roster_hash)
    layout.write(layout.authority, file.authority)
    layout.write(layout.reviewers, reviewers.file_of(file.reviewers))
    layout.write(layout.roster, signed.to_bytes())
    layout.write(layout.settings, settings.encode())
    layout.write(layout.joined, file.to_bytes())
    layout.agreed.unlink(missing_ok=True)


def _answer(layout: Layout, file: Published, signed: SignedRoster) -> Answer:
    path, _ = layout.card()
    missing = sorted(member.name for member in signed.missing)
    if missing:
        text = (
            f"This site has signed the roster. Missing: {', '.join(missing)}.\n"
            f"1. Send {path} to the coordinator again; it has the signature now.\n"
            f"2. The coordinator sends {file.name}.flhe again, signed by all: flhe site join it."
        )
    else:
        text = (
            f"This site has joined {file.name}: all {len(signed.roster.members)} sites have signed.\n"
            f"Written: {layout.roster}, {layout.authority}, {layout.reviewers}, and the roster's "
            f"hash in {layout.settings}.\nStart the node: flhe site start {file.name}"
        )
        if file.roster.missing:
            text += f"\nSend {path} to the coordinator too: it has this site's signature."
    data = {"federation": file.name, "number": file.serial, "missing": missing, "card": path}
    return Answer({**data, "roster_hash": signed.roster.hash, "joined": not missing}, text)

"""`flhe site join`: compare the federation's file, and write what the node needs.

Comparing the words is a site's consent, and the pinned hash records it. The node signs that hash in
every key agreement, so the others need no signature on the file: a site that has agreed to another
roster, or to none, shares no key with them. The roster's hash says nothing about reviewers, whose
signature lets code run: so a script consents by the hash of all the file's terms. A later file whose
terms were agreed to before is taken without a question.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.text import Text

from flhe.answer import Answer, confirm, notes, table
from flhe.errors import ConfigError, ProtocolError
from flhe.keys.roster import fingerprint
from flhe.keys.roster.roster import Roster
from flhe.provision import rosters, sites
from flhe.provision.federation import reviewers
from flhe.provision.federation.published import Published, difference
from flhe.provision.site import node_file
from flhe.provision.site.layout import Layout
from flhe.wire import files


def join(layout: Layout, file: Published, terms: str) -> Answer:
    """Agree to a federation's file, and write the node's files.

    `terms`, the hash of all but the file's number as hex, says that the administrator has compared
    the words; "" asks on the terminal.
    Raises ConfigError: the file is not for this site, of another coordinator, or an older one; the
    hash is another; or an answer of no. Nothing is written then.
    """
    layout.card()  # a site that is not set up
    last = last_of(layout)
    home = check(layout, file, last)
    changed = last is None or last.terms != file.terms
    if changed:
        _show(file, last)
    if terms and terms.lower() != file.terms.hex():
        raise ConfigError(
            f"--terms: the file's terms have the hash {file.terms.hex()}, not the one that was "
            "written; compare the words again"
        )
    if changed and not terms:
        confirm(
            "Have you compared all of these words by telephone, and do they agree?",
            f"--terms {file.terms.hex()[:8]}... (all of it, once the words are compared)",
        )
    with files.private_umask():
        _write(layout, file, home)
    text = (
        f"This site has joined {file.name}, number {file.serial}: {len(file.roster.members)} sites.\n"
        f"Written: {layout.roster}, {layout.authority}, {layout.reviewers}, and the roster's "
        f"hash in {layout.settings}.\nStart the node, again if it runs: flhe site start {file.name}"
    )
    if home != layout.home:
        text += (
            f"\nThe rotated key is in use now, in {home}. Models that were sealed before open with "
            f"{layout.home}: back it up before you delete it."
        )
    data = {"federation": file.name, "number": file.serial, "home": home}
    return Answer({**data, "roster_hash": file.roster.hash, "terms": file.terms}, text)


def last_of(layout: Layout) -> Published | None:
    """Return the coordinator's file that this site has agreed to, if any; ConfigError if damaged."""
    return Published.read(layout.joined) if layout.joined.exists() else None


def home_of(layout: Layout, roster: Roster) -> Path:
    """Return the state directory whose key a roster lists: the one in use, or a rotated one."""
    with layout.as_user():
        own = sites.existing(layout.home).public
        following = layout.next_home()
        rotated = own if following is None else sites.existing(following).public
    if following is not None and own not in roster.publics and rotated in roster.publics:
        return following
    try:
        roster.rank(own)
    except ProtocolError as error:
        raise ConfigError(
            f"the federation's file does not list this site: {error}; send the card to the "
            "coordinator"
        ) from None
    return layout.home


def check(layout: Layout, file: Published, last: Published | None) -> Path:
    """Refuse a file that this site must not follow; ConfigError. Return its `home_of`."""
    home = home_of(layout, file.roster)
    if last is None:
        return home
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
    rosters.check_revoked(last.roster, file.roster)
    return home


def _show(file: Published, last: Published | None) -> None:
    """Show all of a file, what differs, and the words to compare."""
    roster = file.roster
    out = notes()
    out.print(rosters.table(roster.members))
    head = f"Federation {file.name}, number {file.serial}; SuperLink {file.address}"
    own = "These bounds only tighten this site's own settings; node.toml stays as it is."
    out.print(Text(f"{head}\n{rosters.bounds(roster)}\n{own}"), soft_wrap=True)
    if last is not None:
        out.print(Text(f"\nChanges:\n{difference(last, file)}"), soft_wrap=True)
    rows = [
        ("every other site", "hash of the roster", roster.hash),
        ("the coordinator", "coordinator's key", file.coordinator),
        *(("the reviewer", "reviewer's key", key) for key in file.reviewers),
    ]
    words = [(other, what, "\n".join(fingerprint.lines(data))) for other, what, data in rows]
    out.print(table(("compare with", "what", "words"), words, show_lines=True))


def _write(layout: Layout, file: Published, home: Path) -> None:
    """Write the node's files; of the settings, the roster's hash and the state directory change."""
    text = layout.settings.read_text(encoding="utf-8")
    text = node_file.pin(text, "flhe-roster-hash", file.roster.hash.hex())
    if home != layout.home:
        text = node_file.pin(text, "flhe-home", f"{home}")
    layout.write(layout.authority, file.authority)
    layout.write(layout.reviewers, reviewers.file_of(file.reviewers))
    layout.write(layout.roster, file.roster.to_bytes())
    layout.write(layout.settings, text.encode())
    layout.write(layout.joined, file.to_bytes())
    if home == layout.next_home():  # also where an earlier join was cut short after the settings
        path, _ = layout.card()
        layout.write(path, (layout.rotated / path.name).read_bytes())
        (layout.rotated / "home").unlink()  # first: without it no rotation is under way
        shutil.rmtree(layout.rotated)

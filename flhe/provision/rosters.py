"""Rosters of the federation's files: their display, their differences, and what a site refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from flhe.answer import table as table_of
from flhe.errors import ConfigError
from flhe.keys.roster import fingerprint
from flhe.keys.roster.roster import Member, Roster


def difference(old: Roster, new: Roster) -> str:
    """Return the differences between two rosters, one line each."""
    was, now = ({m.name: m.public for m in roster.members} for roster in (old, new))
    lines = []
    for name in sorted(was.keys() | now.keys()):
        if name not in was:
            lines.append(f"+ {name} joins, with the key {now[name].hex()[:16]}")
        elif name not in now:
            revoked = was[name] in new.revoked
            fate = " and is revoked" if revoked else ", AND ITS KEY IS NOT REVOKED"
            lines.append(f"- {name} leaves{fate}")
        elif was[name] != now[name]:
            key = now[name].hex()[:16]
            fate = "is revoked" if was[name] in new.revoked else "IS NOT REVOKED"
            lines.append(f"* {name} has another key, {key}; the old one {fate}")
    pairs = zip(bounds(old).splitlines(), bounds(new).splitlines(), strict=True)
    lines += [f"* {after}" for before, after in pairs if before != after]
    return "\n".join(lines) or "Nothing differs from the previous roster."


def table(members: Iterable[Member], site: str = "site") -> Table:
    """Return one row for each site, in order of names."""
    rows = [
        (m.name, f"{m.public.hex()[:16]} ...", "\n".join(fingerprint.lines(m.public)))
        for m in sorted(members, key=lambda m: m.name)
    ]
    return table_of((site, "key", "in words, all of it"), rows, show_lines=True)


def data(roster: Roster) -> dict[str, Any]:
    """Return all of a roster as JSON values."""
    sites = [
        {
            "name": member.name,
            "key": member.public,
            "words": " ".join(fingerprint.lines(member.public)),
        }
        for member in sorted(roster.members, key=lambda m: m.name)
    ]
    return {
        "hash": roster.hash,
        "words": " ".join(fingerprint.lines(roster.hash)),
        "sites": sites,
        "collusion": roster.collusion,
        "min_members": roster.min_members,
        "min_opening": roster.min_opening,
        "schemes": roster.schemes,
        "limits": roster.limits.lines(),
        "revoked": roster.revoked,
    }


def bounds(roster: Roster) -> str:
    """Return a roster's limits as lines of text."""
    size = len(roster.members)
    lines = [
        f"Of {size} sites, {roster.collusion} may conspire with the server.",
        f"Keys are agreed among {roster.min_members} or more, and a sum that is opened has "
        f"{roster.min_opening} senders or more.",
        f"Schemes: {', '.join(roster.schemes)}.",
        f"Parameters: {', '.join(roster.limits.lines()) or 'each site decides'}.",
    ]
    keys = ", ".join(key.hex()[:16] for key in roster.revoked) or "none"
    lines.append(f"Revoked keys, which never take part again: {keys}.")
    return "\n".join(lines)


def check_revoked(old: Roster, new: Roster) -> None:
    """Refuse a roster that no longer revokes a revoked key; ConfigError."""
    if lost := sorted(set(old.revoked) - set(new.revoked)):
        listed = {member.public: member.name for member in new.members}
        named = ", ".join(
            key.hex()[:16] + (f" (listed as {listed[key]})" if key in listed else "")
            for key in lost
        )
        raise ConfigError(
            f"expected all revoked keys of the roster in force, got one without {named}: call the "
            "coordinator, who must publish from the last file"
        )

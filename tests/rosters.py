"""Writes a roster file that all of its members have signed, as a node pins it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.keys.roster.signed_roster import SignedRoster


def write_signed(path: Path, roster: Roster, identities: Iterable[Identity]) -> dict[str, Any]:
    """Write the file; returns the node config that pins it."""
    signed = SignedRoster(roster)
    for identity in identities:
        if identity.public in roster.publics:
            signed = signed.signed(identity)
    signed.check_complete()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(signed.to_bytes())
    return {"flhe-trust": "pinned", "flhe-roster": str(path), "flhe-roster-hash": roster.hash.hex()}

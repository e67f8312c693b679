"""Writes a roster file, as a node pins it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flhe.keys.roster.roster import Roster


def write_pinned(path: Path, roster: Roster) -> dict[str, Any]:
    """Write the file; returns the node config that pins it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(roster.to_bytes())
    return {"flhe-trust": "pinned", "flhe-roster": str(path), "flhe-roster-hash": roster.hash.hex()}

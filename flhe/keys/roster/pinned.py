"""The roster file, and the hash by which a node pins it.

The file is a roster's encoding alone, so its SHA-256 is the roster's hash. Pinning it is a site's
consent: its administrator has compared the hash with the other sites. Members prove it to each
other in every key agreement, where each signs the hash of its pinned roster (`keys/agreement`). So
nothing is encrypted together with a site that has agreed to another roster, or to none.

Source: docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from flhe.errors import ConfigError, config_errors
from flhe.keys.roster.roster import MAX_BYTES, Roster


def load_pinned(path: str | Path, pinned: str) -> Roster:
    """Read the roster in the file `path` if it has the pinned hash.

    Raises ConfigError: the file cannot be read, is damaged or holds another roster; or the hash is
    invalid. No error names the file, because servers see some errors.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the roster file: {error.strerror}") from None
    with config_errors("the roster file cannot be used"):
        roster = Roster.from_bytes(data)
    check_pinned(roster, pinned)
    return roster


def check_pinned(roster: Roster, pinned: str) -> None:
    """Raise ConfigError unless the roster has the pinned hash, given as 64 hexadecimal digits."""
    try:
        want = bytes.fromhex(pinned)
    except ValueError:
        want = b""
    if len(want) != hashlib.sha256().digest_size:
        raise ConfigError("the pinned roster hash must be 32 bytes, written as 64 hex digits")
    if not hmac.compare_digest(roster.hash, want):
        raise ConfigError(
            f"the roster file has hash {roster.hash.hex()}, this node pins {want.hex()}: "
            "get the agreed file, or pin the new hash after checking it with the other sites"
        )

"""Identity of a site, in its state directory."""

from __future__ import annotations

from pathlib import Path

from flhe.errors import ConfigError, config_errors
from flhe.keys.identity import Identity
from flhe.node.store import Store

IDENTITY = "identity.key"


def has_identity(home: Path) -> bool:
    """Return whether a directory is a node's state directory."""
    return (home / IDENTITY).is_file()


def existing(home: Path) -> Identity:
    """Return the identity in a state directory; it is never created here.

    Raises ConfigError: there is none; StoreError: it is damaged, of another user, or open to
    others.
    """
    if not has_identity(home):
        raise ConfigError(f"--home {home}: no identity in it; {how_to_make(home)}")
    with config_errors(f"--home {home}"):
        store = Store(home)
    return store.identity()


def how_to_make(home: Path) -> str:
    """Return the commands by which a state directory gets its identity."""
    return f"flhe site init FEDERATION --name NAME, or flhe keys restore BACKUP --home {home}"

"""Backup and restore of a state directory: the identity, and what opens the models of its epochs.

    HOME/identity.key            back in its place
    HOME/archive/epochs/<id>     keys of epochs, for `flhe open`

They come back beside the epochs that a node works with, not among them: a node that starts there shares
no key with its group, agrees on a new one, and destroys nothing of the archive, which is for its
administrator to keep or to delete.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from flhe.errors import ConfigError, FlheError, NoKeyError, ProtocolError, StoreError
from flhe.keys import files
from flhe.keys.backup import ARCHIVE, MAX_FILE, Backup
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Random
from flhe.keys.keyfile import KeyFile
from flhe.keys.store import Store
from flhe.provision import public_files, sites


def backup(
    home: Path, out: Path, passphrase: str, random: Random = secrets.token_bytes
) -> tuple[Backup, int]:
    """Write the backup of a state directory, 0600; returns what is in it, and how many epochs are not.

    An epoch whose file is damaged, or of another version, is left out.

    Raises
    ------
    ConfigError, StoreError
        No identity there, a passphrase that is too short, or a file that is there.
    """
    public_files.check_new(out)
    identity = sites.existing(home)
    epochs: dict[bytes, Epoch] = {}
    lost = 0
    for store in (Store(home), *_archive(home)):
        for epoch_id in store.epochs():
            try:
                epochs[epoch_id] = Epoch.from_bytes(store.peek_epoch(epoch_id))
            except (ProtocolError, ConfigError, NoKeyError):
                lost += 1
    kept = Backup(identity, tuple(epochs[epoch_id] for epoch_id in sorted(epochs)))
    if not files.create(out, kept.seal(passphrase, random)):
        public_files.check_new(out)
    return kept, lost


def restore(path: Path, home: Path, passphrase: str) -> Backup:
    """Make a state directory of a backup; it was not there, and is there as a whole or not at all.

    Raises
    ------
    ConfigError
        `home` is there, or cannot be made.
    ProtocolError, AuthenticationError
        No backup, another passphrase, or a file that was changed.
    """
    if os.path.lexists(home):
        raise ConfigError(
            f"--home {home}: it is there already, and no key is overwritten: name a new directory"
        )
    kept = Backup.unseal(public_files.read(path, MAX_FILE, "the backup"), passphrase)
    beside = home.with_name(f".{home.name}-{secrets.token_hex(4)}")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(beside)
        if kept.epochs:
            for folder in (beside / ARCHIVE, beside / ARCHIVE / "epochs"):
                files.make_private(folder)
        for epoch in kept.epochs:
            # Without a stamp no claim vouches for it: the store lends it for opening models only.
            data = KeyFile(epoch.to_bytes(), "").to_bytes()
            files.create(beside / ARCHIVE / "epochs" / epoch.id.hex(), data)
        files.create(beside / sites.IDENTITY, kept.identity.seed)
        beside.rename(home)
    except (OSError, FlheError) as error:
        _discard(beside)
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--home {home}: cannot be made ({why})") from None
    return kept


def passphrase_in(path: Path) -> str:
    """The first line of a file that only its owner reads. ConfigError if it is not such a file."""
    try:
        data = files.read(path)
    except StoreError:
        raise ConfigError(
            f"--passphrase-file {path}: it is missing, a link, somebody else's, or open to others: "
            "chmod 600"
        ) from None
    lines = data.decode(errors="surrogateescape").splitlines()
    return lines[0] if lines else ""


def _discard(folder: Path) -> None:
    """Remove a directory that was not finished; keys in it are overwritten, as far as that helps."""
    for path in folder.rglob("*"):
        if path.is_file():
            files.erase(path)
    shutil.rmtree(folder, ignore_errors=True)


def _archive(home: Path) -> list[Store]:
    """The keys that an earlier restore brought back."""
    return [Store(home / ARCHIVE)] if (home / ARCHIVE).is_dir() else []

"""Backup and restore of a state directory: the identity, and what opens the models of its epochs.

    HOME/identity.key            back in its place
    HOME/archive/<epoch id>      what opens the models that were sealed in it, for `flhe open`

No epoch's own keys come back: a node that starts there shares no key with its group, agrees on a new
one, and destroys nothing of the archive, which is for its administrator to keep or to delete.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from flhe.errors import ConfigError, FlheError, ProtocolError, StoreError
from flhe.keys.seal import ModelKey
from flhe.node.backup import ARCHIVE, MAX_FILE, Backup
from flhe.node.checkpoint import model_key_in
from flhe.node.node import EPOCHS
from flhe.node.store import Store
from flhe.provision import public_files, sites
from flhe.wire import files


def backup(home: Path, out: Path, passphrase: str) -> tuple[Backup, int]:
    """Write the backup of a state directory, 0600; returns what is in it, and how many epochs are not.

    An epoch whose file is damaged, or of another version, is left out. Of the others the key of their
    models is in it, and nothing that reads more.

    Raises ConfigError, StoreError: no identity there, a passphrase that is too short, or a file
    that is there.
    """
    identity = sites.existing(home)
    models: dict[bytes, ModelKey] = {}
    lost = 0
    store = Store(home)
    for name in (*store.names(EPOCHS), *store.names(f"{ARCHIVE}/*")):  # also of an earlier restore
        try:
            model = model_key_in(store.read(name))
            models[model.epoch] = model
        except (ProtocolError, ConfigError):
            lost += 1
    kept = Backup(identity.seed, tuple(models[epoch_id] for epoch_id in sorted(models)))
    if not files.create(out, kept.seal(passphrase)):
        public_files.check_new(out)
    return kept, lost


def restore(path: Path, home: Path, passphrase: str) -> Backup:
    """Make a state directory of a backup; it was not there, and is there as a whole or not at all.

    Raises ConfigError: `home` is there, or cannot be made; ProtocolError, AuthenticationError: no
    backup, another passphrase, or a file that was changed.
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
        if kept.models:
            files.make_private(beside / ARCHIVE)
        for model in kept.models:
            files.create(beside / ARCHIVE / model.epoch.hex(), model.to_bytes())
        files.create(beside / sites.IDENTITY, kept.identity.seed)
        beside.rename(home)
    except BaseException as error:  # also Ctrl-C: nothing of it may stay, and it is in clear
        _discard(beside)
        if not isinstance(error, (OSError, FlheError)):
            raise
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
    # Lines end at a line feed, as for everybody else; str.splitlines would end this one at others too.
    line = data.partition(b"\n")[0].removesuffix(b"\r")
    return line.decode(errors="surrogateescape")


def _discard(folder: Path) -> None:
    """Remove a directory that was not finished; keys in it are overwritten, as far as that helps."""
    for path in folder.rglob("*"):
        if path.is_file():
            with suppress(StoreError):
                files.erase(path)
    shutil.rmtree(folder, ignore_errors=True)

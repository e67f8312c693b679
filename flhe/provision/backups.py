"""Backup and restore of a state directory: the identity, and the model keys of its epochs.

    HOME/identity.key            back in its place
    HOME/archive/<epoch id>      the epoch's model key, for `flhe open`

A backup holds no epoch's own keys. A node restored from it shares no key with its group and agrees
on a new one. It leaves the archive alone, for its administrator to keep or delete.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from flhe.errors import ConfigError, FlheError, ProtocolError, StoreError
from flhe.keys.seal import ModelKey
from flhe.node.backup import ARCHIVE, MAX_FILE, Backup
from flhe.node.checkpoint import model_key_in
from flhe.node.node import EPOCHS
from flhe.node.store import Store
from flhe.provision import public_files, sites
from flhe.provision.signals import raising
from flhe.wire import files


def backup(home: Path, out: Path, passphrase: str) -> tuple[Backup, int]:
    """Write the backup of a state directory, 0600; return its content and the number left out.

    An epoch with a damaged file, or one of another version, is left out. The backup holds the model
    keys of the others, and nothing that reads more.

    Raises ConfigError, StoreError: no identity there, a passphrase that is too short, or an
    existing file.
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
    if not files.create(out, kept.seal(passphrase), "the directory of --out"):
        public_files.check_new(out)
    return kept, lost


def restore(path: Path, home: Path, passphrase: str) -> Backup:
    """Create a new state directory from a backup, completely or not at all.

    Raises ConfigError: `home` exists, or cannot be created; ProtocolError, AuthenticationError: no
    backup, a wrong passphrase, or an altered file.
    """
    if os.path.lexists(home):
        raise ConfigError(
            f"--home {home}: it exists already, and no key is overwritten: name a new directory"
        )
    kept = Backup.unseal(public_files.read(path, MAX_FILE, "the backup"), passphrase)
    beside = home.with_name(f".{home.name}-{secrets.token_hex(4)}")
    stops = (signal.SIGTERM, signal.SIGHUP)
    ends = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]  # not nohup's
    try:
        with raising(lambda number: SystemExit(128 + number), *ends):
            home.parent.mkdir(parents=True, exist_ok=True)
            files.make_private(beside)
            if kept.models:
                files.make_private(beside / ARCHIVE)
            for model in kept.models:
                files.create(beside / ARCHIVE / model.epoch.hex(), model.to_bytes())
            files.create(beside / sites.IDENTITY, kept.identity.seed)
            beside.rename(home)
    except BaseException as error:  # also Ctrl-C: its keys are in clear, so nothing may stay
        _discard(beside)
        if not isinstance(error, (OSError, FlheError)):
            raise
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--home {home}: cannot be created ({why})") from None
    return kept


def passphrase_in(path: Path) -> str:
    """Return the first line of a file that only its owner may read; ConfigError otherwise."""
    try:
        data = files.read(path)
    except StoreError:
        raise ConfigError(
            f"--passphrase-file {path}: it must be a file of yours that no other user may read, "
            "not a link: chmod 600"
        ) from None
    # Only a line feed ends a line here; str.splitlines would split at others too.
    line = data.partition(b"\n")[0].removesuffix(b"\r")
    return line.decode(errors="surrogateescape")


def _discard(folder: Path) -> None:
    """Remove an unfinished directory; keys in it are overwritten as far as that helps."""
    for path in folder.rglob("*"):
        if path.is_file():
            with suppress(StoreError):
                files.erase(path)
    shutil.rmtree(folder, ignore_errors=True)

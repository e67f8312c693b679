"""Opening a sealed checkpoint: the one way to get the model out of a federation.

`flhe open` reads what the server kept and a key that only the group has, and writes the model's
arrays. The key is an epoch of some member: its state directory, one above it that holds several, or
the epoch's own file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flhe.coding.flatten import BFLOAT16
from flhe.errors import ConfigError, ProtocolError
from flhe.keys import seal
from flhe.keys.backup import ARCHIVE
from flhe.keys.epoch import Epoch
from flhe.keys.keyfile import KeyFile
from flhe.keys.store import Store
from flhe.rounds.model import Model

FORMATS = (".npz", ".pt")
DEPTH = 3
"""Directories below --key that are searched: FLHE_HOME / run / node."""


def open_checkpoint(sealed: Path, key: Path) -> Model:
    """Open a sealed checkpoint.

    Parameters
    ----------
    sealed : Path
        What the run wrote.
    key : Path
        A member's state directory, a directory above some, or an epoch's file.

    Raises
    ------
    ConfigError
        A file that is not there, or no key of the right epoch.
    ProtocolError, AuthenticationError
        Not a sealed checkpoint, an altered one, or one of another epoch.
    """
    data = _read(sealed, "the sealed model")
    header = seal.peek(data)
    epoch_id = header.get("epoch")
    if header.get("stage") != "checkpoint" or type(epoch_id) is not bytes:
        raise ProtocolError(f"{sealed.name} is sealed, but no checkpoint of a model")
    epoch = _find(key, epoch_id)
    expect: dict[str, int | str | bytes] = {
        "stage": "checkpoint",
        "epoch": epoch.id,
        "run_id": epoch.run_id,
        "roster_hash": epoch.roster.hash,
    }
    _, plain = seal.unseal(epoch.group_key, data, expect)
    return Model.from_bytes(plain)


def write_model(model: Model, out: Path) -> None:
    """Write a model's arrays as .npz or .pt, for its owner only (0600).

    In .npz a bfloat16 array becomes float32, because NumPy has no such type.

    Raises
    ------
    ConfigError
        Another suffix, a path that cannot be written, or .pt without torch.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"--output {out.name}: must end in {' or '.join(FORMATS)}")
    save = _save_torch if out.suffix == ".pt" else _save_numpy
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--output {out}: cannot be written ({error.strerror})") from None
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, 0o600)  # also where the file was there before
        save(model, file)


def _save_numpy(model: Model, file: Any) -> None:
    arrays = model.arrays()
    for entry in model.layout.entries:
        if entry.dtype == BFLOAT16:
            arrays[entry.name] = model.masters[entry.name]
    np.savez(file, allow_pickle=False, **arrays)


def _save_torch(model: Model, file: Any) -> None:
    try:
        import torch
    except ImportError:
        raise ConfigError(
            "writing .pt needs torch: pip install 'flhe[apps]', or use .npz"
        ) from None
    tensors = {}
    for entry in model.layout.entries:
        if entry.dtype == BFLOAT16:
            master = torch.from_numpy(np.array(model.masters[entry.name]))
            tensors[entry.name] = master.to(torch.bfloat16)
        else:
            array = np.array(model.masters[entry.name], entry.dtype)
            tensors[entry.name] = torch.from_numpy(array)
    torch.save(tensors, file)


def _find(key: Path, epoch_id: bytes) -> Epoch:
    if key.is_file():
        epoch = Epoch.from_bytes(KeyFile.from_bytes(_read(key, "the key")).epoch)
        if epoch.id != epoch_id:
            raise ConfigError(f"--key {key}: a key of another epoch than the sealed model's")
        return epoch
    if not key.is_dir():
        raise ConfigError(f"--key {key}: no such file or directory")
    for home in _homes(key, DEPTH):
        if (home / "epochs" / epoch_id.hex()).is_file():
            return Epoch.from_bytes(Store(home).peek_epoch(epoch_id))
    raise ConfigError(
        f"--key {key}: no key of epoch {epoch_id.hex()[:8]} in it; name the state directory of a "
        "member of that run"
    )


def _homes(path: Path, depth: int) -> Iterator[Path]:
    if (path / "epochs").is_dir():
        yield path
        if (path / ARCHIVE).is_dir():  # what a restore brought back
            yield path / ARCHIVE
    elif depth:
        for child in sorted(p for p in path.iterdir() if p.is_dir() and not p.is_symlink()):
            yield from _homes(child, depth - 1)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read ({error.strerror})") from None

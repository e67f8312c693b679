"""Open a sealed checkpoint: the only way to get the model out of a federation.

The server keeps the checkpoint. Only the group has its key: in an epoch of any member, or in a
restored backup. `flhe open` writes the model's arrays.
"""

from __future__ import annotations

import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flhe.coding.flatten import BFLOAT16
from flhe.errors import ConfigError, ProtocolError, StoreError
from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey
from flhe.node.backup import ARCHIVE
from flhe.packages import install_hint
from flhe.training.model import Model
from flhe.wire import files

FORMATS = (".npz", ".pt")
DEPTH = 3
"""Levels of directories below --key that are searched: FLHE_HOME / run / node."""


def open_checkpoint(sealed: Path, key: Path) -> Model:
    """Open the sealed checkpoint that a run wrote.

    `key` is a member's state directory, a parent of several, an epoch's file or a model key's file.

    Raises ConfigError: a missing file, or no key of the right epoch; ProtocolError,
    AuthenticationError: not a sealed checkpoint, or an altered one.
    """
    data = _read(sealed, "the sealed model")
    return Model.from_bytes(seal.unsealed(_find(key, seal.peek(data).epoch), data)[1])


def write_model(model: Model, out: Path) -> None:
    """Write a model's arrays as .npz or .pt, readable by the owner only (0600).

    In .npz a bfloat16 array becomes float32, because NumPy has no such type.

    Raises ConfigError: another suffix, a path that cannot be written, an array whose name .npz cannot
    hold, or .pt without torch.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"--output {out.name}: must end in {' or '.join(FORMATS)}")
    names = {entry.name for entry in model.layout.entries}
    for name in sorted(names) if out.suffix == ".npz" else ():
        if "\0" in name or f"{name}.npy" in names:  # NumPy would read another array's values
            raise ConfigError(
                f"--output {out.name}: .npz cannot hold the array {name!r} under its own name; "
                "write a .pt file"
            )
    save = _save_torch if out.suffix == ".pt" else _save_numpy
    try:
        with files.writing(out, "its directory") as file:
            save(model, file)
    except StoreError as error:
        raise ConfigError(f"--output {out}: {error}") from None


def _save_numpy(model: Model, file: Any) -> None:
    arrays = model.arrays()
    for entry in model.layout.entries:
        if entry.dtype == BFLOAT16:
            arrays[entry.name] = model.masters[entry.name]
    # As numpy.savez, whose own arguments no array may be named after.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _save_torch(model: Model, file: Any) -> None:
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"writing .pt needs torch: {install_hint('torch')}, or use .npz"
        ) from None
    tensors = {}
    for entry in model.layout.entries:
        short = entry.dtype == BFLOAT16
        array = np.array(model.masters[entry.name], None if short else entry.dtype)
        tensor = torch.from_numpy(array)
        tensors[entry.name] = tensor.to(torch.bfloat16) if short else tensor
    torch.save(tensors, file)


def _find(key: Path, epoch_id: bytes) -> ModelKey:
    if key.is_file():
        found = model_key_in(_read(key, "the key"))
        if found.epoch != epoch_id:
            raise ConfigError(f"--key {key}: a key of another epoch than the sealed model's")
        return found
    if not key.is_dir():
        raise ConfigError(f"--key {key}: no such file or directory")
    for depth, folder in product(range(DEPTH + 1), ("epochs/", f"{ARCHIVE}/", "")):
        for kept in sorted(key.glob("*/" * depth + folder + epoch_id.hex())):
            if kept.is_file():
                return model_key_in(files.read(kept))
    raise ConfigError(
        f"--key {key}: no key of epoch {epoch_id.hex()[:8]} in it; name the state directory of a "
        "member of that run"
    )


def model_key_in(data: bytes) -> ModelKey:
    """Return the model key in a model key's or epoch's file; ProtocolError for any other."""
    try:
        return ModelKey.from_bytes(data)
    except ProtocolError:
        return ModelKey.of(Epoch.from_bytes(data))


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read ({error.strerror})") from None

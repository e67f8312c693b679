"""save_sealed: keeping what a strategy returns, which is not a model but a box."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from logging import INFO, getLogger
from pathlib import Path

from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError, ProtocolError
from flhe.mods import records
from flhe.node.policy import default_root

log = getLogger("flwr").log


def save_sealed(result: Result, path: str | Path) -> None:
    """Write the sealed checkpoint of a finished run, and log where it is and how it is opened.

    Parameters
    ----------
    result : Result
        What `HEStrategy.start` returned.
    path : str or Path
        File to write; an older one is replaced.

    Raises
    ------
    ProtocolError
        The result holds no sealed checkpoint.
    ConfigError
        The file cannot be written.
    """
    try:
        pieces = records.to_pieces(result.arrays)
    except ProtocolError:
        raise ProtocolError(
            "this result holds no sealed checkpoint: the model was not written"
        ) from None
    write_private(path, pieces)
    place = str(Path(path).resolve())  # a server app works where the SuperLink was started
    log(INFO, "Sealed model: %s", place)
    log(
        INFO,
        "Open it: flhe open %s --key %s --output model.npz "
        "(a simulation's keys; in a deployment, name the state directory of a member)",
        shlex.quote(place),
        shlex.quote(str(default_root())),
    )


def write_private(path: str | Path, pieces: Iterable[bytes]) -> None:
    """Write a file for its owner only (0600). ConfigError when that cannot be done."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # also where the file was there before
            file.writelines(pieces)
    except OSError as error:
        raise ConfigError(
            f"the final model cannot be written to {str(path)!r} ({error.strerror}): "
            "name a file in a directory that exists and is yours"
        ) from None

"""The final model: where the server app writes it, and how to open it."""

from __future__ import annotations

import io
from dataclasses import replace
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError
from flhe.strategies.sealed_result import save_sealed, write_private
from flhe_app.environment import data_home
from flhe_app.settings import Settings

log = getLogger("flwr").log


def placed(settings: Settings, run_id: int) -> Settings:
    """Return `settings` with the absolute path of the final model.

    If `sealed-model` is empty, the file is `models/run-ID.flhe` in the user's data directory, or
    `.npz` if the server reads the model: the server app runs in a directory of Flower's, which the
    user does not know.

    Raises ConfigError: the file cannot be written there. The run has not trained anything yet.
    """
    if settings.sealed_model:
        path = Path(settings.sealed_model).expanduser().absolute()
        if path.is_dir() or not path.parent.is_dir():
            raise ConfigError(f"sealed-model={path}: name a file in a directory that exists")
    else:
        path = data_home() / "models" / f"run-{run_id}{settings.model_suffix}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the final model goes into {path.parent}, which cannot be written "
                f"({error.strerror}): set sealed-model to a file in a directory of yours"
            ) from error
    return replace(settings, sealed_model=str(path))


def write_model(settings: Settings, result: Result) -> None:
    """Write the final model, the sealed checkpoint or the arrays as .npz, and log where it is."""
    path = Path(settings.sealed_model)
    if settings.model_suffix == ".flhe":
        save_sealed(result, path)
        return
    clear: dict[str, Any] = {name: array.numpy() for name, array in result.arrays.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **clear)
    write_private(path, [buffer.getvalue()])
    log(INFO, "Model: %s", path)

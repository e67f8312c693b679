"""Data sets in a directory, or fetched by flwr-datasets: only where download=true says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError


def fetched(task: str, name: str, root: Path | None) -> Any:
    """All rows of a data set that has a training split alone.

    It is kept in the directory `root`; None for where such data sets are kept by default.
    """
    from flwr_datasets import FederatedDataset

    where = {} if root is None else {"cache_dir": str(root)}
    try:
        found = FederatedDataset(dataset=name, partitioners={"train": 1}, shuffle=False, **where)
        return found.load_split("train")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"task={task!r}: {name} could not be fetched ({type(error).__name__}); it takes a network: "
            "or put the files into a directory and name that with --data-dir"
        ) from error


def only_one(task: str, found: Sequence[Path]) -> Path | None:
    """Return the file of a data directory; None where there is none, ConfigError for several."""
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(
            f"task={task!r}: the data directory holds {names}; name one of them with --data-dir"
        )
    return found[0] if found else None

"""Data sets and models that the app trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from flhe_app.tasks.workloads import Workload

INSTALLED = ("digits", "fcn-digits", "cnn-digits")
"""Tasks whose data set comes with scikit-learn."""


def task_named(name: str) -> Workload:
    """Return the task of that name, importing its module only now."""
    from flhe_app.tasks.workloads import OTHERS, WORKLOADS

    return (OTHERS | WORKLOADS)[name]


def check_data(name: str, data_dir: str) -> None:
    """Refuse a run whose data set cannot be there, before anything starts; reads nothing."""
    if name in INSTALLED:
        return
    if not data_dir:
        raise ConfigError(
            f"task {name!r} needs its data set: put it into a directory "
            "and name that with --data-dir"
        )
    path = Path(data_dir).expanduser()
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"--data-dir {data_dir}: no such directory or file")


def only_one(task: str, found: Sequence[Path]) -> Path | None:
    """Return the file of a data directory; None where there is none, ConfigError for several."""
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(
            f"task={task!r}: the data directory holds {names}; name one of them with --data-dir"
        )
    return found[0] if found else None

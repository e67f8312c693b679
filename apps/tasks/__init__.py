"""Data sets and models that the app trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from flhe_app.tasks.workloads import Workload

INSTALLED = ("digits", "fcn-digits", "cnn-digits")
"""Tasks whose data set comes with scikit-learn."""

FETCHED = ("lstm", "gru", "cnn")
"""Tasks whose data set flwr-datasets fetches, into a directory of its own unless one is given."""

BROUGHT = ("fcn", "alexnet", "resnet20")
"""Tasks whose data set the user puts into a directory, or has torchvision fetch into it."""

TASKS = INSTALLED + BROUGHT + FETCHED


def task_named(name: str) -> Workload:
    """Return the task of that name, importing its module only now."""
    from flhe_app.tasks.workloads import DIGITS, WORKLOADS

    return DIGITS if name == DIGITS.name else WORKLOADS[name]


def check_data(name: str, data_dir: str, *, download: bool) -> None:
    """Refuse a run whose data set cannot be there, before anything starts; reads nothing."""
    if name in INSTALLED or (name in FETCHED and download and not data_dir):
        return
    if not data_dir:
        raise ConfigError(
            f"task {name!r} needs its data set: put it into a directory "
            "and name that with --data-dir"
        )
    path = Path(data_dir).expanduser()
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"--data-dir {data_dir}: no such directory or file")

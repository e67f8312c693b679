"""Data sets and models that the app trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from flhe_app.tasks.workloads import Workload

TASKS = (
    *("digits", "fcn-digits", "cnn-digits"),  # come with scikit-learn
    *("fcn", "alexnet", "resnet20"),  # from the user, or fetched by torchvision
    *("lstm", "gru", "cnn"),  # from the user, or fetched by flwr-datasets
)


def task_named(name: str) -> Workload:
    """Return the task of that name, importing its module only now."""
    from flhe_app.tasks.workloads import WORKLOADS

    return WORKLOADS[name]


def check_data(name: str, data_dir: str, *, download: bool) -> None:
    """Refuse a run without its data set, before anything starts; reads nothing."""
    source = task_named(name).source
    if source.there("") or (download and not data_dir and bool(getattr(source, "hub", ""))):
        return
    if not data_dir:
        raise ConfigError(
            f"task {name!r} needs its data set: put it into a directory "
            "and name that with --data-dir"
        )
    path = Path(data_dir).expanduser()
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"--data-dir {data_dir}: no such directory or file")

"""Data sets and models that the app trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flhe_app.tasks.workloads import Workload

TASKS = (
    *("digits", "fcn-digits", "cnn-digits"),  # come with scikit-learn
    *("fcn", "alexnet", "resnet20", "lstm", "gru", "cnn"),  # in files, or fetched
)


def task_named(name: str) -> Workload:
    """Return the task of that name, importing its module only now."""
    from flhe_app.tasks.workloads import WORKLOADS

    return WORKLOADS[name]

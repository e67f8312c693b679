"""Data sets and models that the app trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from flhe.apps.tasks.base import Task


def task_named(name: str) -> Task:
    """Return the task of that name, importing its module only now."""
    if name == "digits":
        from flhe.apps.tasks.digits import DIGITS

        return DIGITS
    if name in ("cifar10", "fashion-mnist"):
        from flhe.apps.tasks.vision import CIFAR10, FASHION_MNIST

        return CIFAR10 if name == "cifar10" else FASHION_MNIST
    raise ConfigError(f"task={name!r} is unknown; use one of digits, cifar10, fashion-mnist")

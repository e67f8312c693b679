"""Modules of the library that may read what others wrote."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import flhe
import flhe.strategies


def modules() -> Iterator[ModuleType]:
    """All of them, imported; those of the laboratory and of the apps are not among them."""
    packages = [(flhe.__path__, "flhe."), (flhe.strategies.__path__, "flhe.strategies.")]
    for path, prefix in packages:
        for info in pkgutil.walk_packages(path, prefix):
            if "kernels" not in info.name and not info.name.startswith(("flhe_lab", "flhe_app")):
                yield importlib.import_module(info.name)

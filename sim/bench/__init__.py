"""`flhe bench`: what encryption costs, beside what nobody can beat and what a user would pick instead.

Who takes part is a `Contender`: a name, what it does in each phase, and what is known of it. `measure`
times any number of them, in turns.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flhe_lab.bench.contender import (
        PHASES,
        SLOT,
        Contender,
        Laps,
        Setting,
        Vector,
    )
    from flhe_lab.bench.host import machine, pinned, quiet
    from flhe_lab.bench.turns import Measured, Progress, Times, measure

__all__ = [
    "PHASES",
    "SLOT",
    "Contender",
    "Laps",
    "Measured",
    "Progress",
    "Setting",
    "Times",
    "Vector",
    "machine",
    "measure",
    "pinned",
    "quiet",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: the command line imports this package, and not numpy."""
    if name in __all__:
        for part in ("contender", "turns", "host"):
            module = import_module(f"{__name__}.{part}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

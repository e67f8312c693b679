"""A check: its subject, result and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `flhe doctor`; nothing of it is secret.

    A node with a failure cannot or should not take part.
    """

    name: str
    level: Level
    says: str
    mend: str = ""


Checks = Iterator[Check]

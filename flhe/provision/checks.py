"""A check: what was looked at, how it stands, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from flhe.errors import ConfigError, FlheError

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `flhe doctor`; nothing of it is secret.

    A node with a failure will not take part, or should not.
    """

    name: str
    level: Level
    says: str
    mend: str = ""

    def __post_init__(self) -> None:
        if self.level != "ok" and not self.mend:
            raise ConfigError(f"Check({self.name}): what is wrong needs a mend")


Checks = Iterator[Check]


def tried(name: str, mend: str, act: Callable[[], str]) -> Check:
    """Return a check that says what `act` returns, or fails with the FlheError that it raises."""
    try:
        return Check(name, "ok", act())
    except FlheError as error:
        return Check(name, "fail", str(error), mend)

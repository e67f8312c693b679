"""Script: what a server asks for, whatever the system; and what came of it, as the server has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flhe_lab.server_audit.task import Floats, Setting


@dataclass(frozen=True, slots=True)
class Probe:
    """Questions to the victim beside the rounds, each of a model of the server's choice."""

    loss: Callable[[Floats], float | None]  # Evaluates it; None where it tells nothing
    plain: Callable[[Floats], Floats | None]
    """Trains it in clear; the update that it sends, None where it sends none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One round as the server asks for it."""

    sites: tuple[int, ...] | None = None  # Who is in the sum; None is everybody
    rates: dict[int, float] = field(default_factory=dict)
    """Learning rates that single sites are told in their messages, by site."""
    again: bool = False  # Whether it starts from the first model again
    dropped: int | None = None  # Site whose reply the server keeps out of the sum


@dataclass(frozen=True, slots=True)
class Script:
    """A run.

    `signed` are rates by site that are written into what members sign, where there is such a thing.
    `before` is asked before the run begins, `aside` before the first evaluation.
    """

    rounds: tuple[Ask, ...] = (Ask(),)
    signed: dict[int, float] = field(default_factory=dict)
    before: Callable[[Probe], None] | None = None
    aside: Callable[[Probe], None] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server has of one round. Arrays have the shape (values,)."""

    mean: Floats | None = None  # Of the updates in the sum, where the server reads it
    weight: float | None = None  # Of the sum: how many examples its senders have
    clear: Floats | None = None  # The victim's update, where it came in clear
    masked: Floats | None = None  # What came of the victim instead, read as numbers

    @property
    def best(self) -> Floats | None:
        """What comes closest to the victim's update without any attack."""
        found = (self.clear, self.mean, self.masked)
        return next((each for each in found if each is not None), None)


@dataclass(slots=True)
class View:
    """What a server has of a run."""

    rounds: list[Seen] = field(default_factory=list)
    told: list[tuple[int, int, str, float]] = field(default_factory=list)
    """(round, site, name, number) of every number that a site told in clear."""
    refusals: dict[str, int] = field(default_factory=dict)  # Error of a site -> how often

    def seen(self, number: int) -> Seen:
        """Of a round, from 1; nothing where it did not come to pass."""
        return self.rounds[number - 1] if number <= len(self.rounds) else Seen()

    def numbers(self, site: int, *names: str) -> list[float]:
        """What a site told under any of these names, in order."""
        return [value for _, who, name, value in self.told if who == site and name in names]


class System(Protocol):
    """A way to run a federation."""

    @property
    def name(self) -> str:
        """Of its column."""

    @property
    def signs(self) -> bool:
        """Whether members sign what apps are told."""

    def run(self, setting: Setting, script: Script) -> View:
        """Run a script with the real code of the sites; what the server has then."""

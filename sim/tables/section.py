"""A section of the tables: the steps that it needs, and what it makes of their results.

A step is the least that is measured at a time and kept: a run that was stopped goes on behind the last
one that ended. Steps are known by their keys, so that two sections that need the same measurement
share it. What is to be compared belongs into one step, in turns: a ratio is of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flhe_lab.tables.result import Result

Say = Callable[[str], None]
"""Takes what is going on, for the progress bar."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement."""

    key: str
    """Its name, of the file that it is kept in: all that the result depends on, such as sizes, cohort,
    and whether it is a quick one."""
    work: Callable[[Say], Any]  # Takes `say`; returns JSON values
    about: str  # What it does, for the progress bar
    threads: int = 1  # Processors that it is pinned to; 0: as many as there are


Found = Mapping[str, Any]
"""Step's key -> its result, JSON values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    quick: bool  # Few repeats, small samples: all of it in five minutes on two processors
    data_dir: str = ""  # Where data sets lie; "" where there are none: what needs them is left out

    @property
    def name(self) -> str:
        """What its page and folder are called: a quick run never takes the place of a full one."""
        return "results-quick" if self.quick else "results"

    @property
    def repeats(self) -> int:
        """Counted turns of what is timed, after one that warms up."""
        return 2 if self.quick else 7


@dataclass(frozen=True, slots=True)
class Section:
    """A paper's table or figure, or several that come of the same measurements."""

    name: str  # "flashe-table-2"; what a user asks for
    paper: str  # "FLASHE"
    steps: Callable[[Plan], Sequence[Step]]
    """Plan -> steps, in order; none where nothing is measured."""
    report: Callable[[Plan, Found], Sequence[Result]]
    """(plan, found) -> results. It measures nothing."""
    covers: tuple[str, ...] = ()  # What of the paper it regenerates: "Table 2"

"""Sections of the tables: the steps that they need, and tables that are filled with their results.

A step is the least that is measured at a time and kept: a run that was stopped goes on behind the last
one that ended. Steps are known by their keys, so that two sections that need the same measurement
share it. What is to be compared belongs into one step, in turns: a ratio is of one run.

Tables are declared in tables.toml: what a module fills in is numbers. A declaration has `source`
("FLASHE, Table 2"), `title`, `units` of the columns, `chart`, `ratios` (what, to whom, of which group
only) and `notes`. Titles and notes are format strings: names in braces are what the module tells, or
texts of [shared].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flhe_lab.advise.toml_files import load_toml
from flhe_lab.tables.chart import Chart, filled
from flhe_lab.tables.result import Entry, Group, Marked, Result, published, ratios

Say = Callable[[str], None]
"""Takes what is going on, for the progress bar."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement."""

    key: str
    """Its name, of the file that it is kept in: all that the result depends on, such as sizes."""
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


Numbers = Mapping[str, Marked | float | None]
"""Quantity -> number; bare ones are published, None is left out."""


@dataclass(frozen=True, slots=True)
class Line:
    """Numbers of one row and one who.

    But for them, as in Entry.
    """

    row: str
    who: str
    group: Group
    numbers: Numbers
    x: float | None = None


Fill = Callable[[Plan, Found], Iterable[Line]]
Told = Callable[[Plan, Found], Mapping[str, object]]
"""(plan, found) -> what titles and notes name in braces."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table or figure: its declaration's name in tables.toml, and what fills it."""

    name: str  # "flashe-table-2"
    fill: Fill  # (plan, found) -> lines, in order
    told: Told | None = None  # What titles and notes name in braces

    def result(self, plan: Plan, found: Found) -> Result:
        """Fill it in."""
        declared = declarations()[self.name]
        told = dict(self.told(plan, found)) if self.told else {}
        whole = "".join((declared["title"], *declared.get("notes", ())))
        shared = declarations()["shared"]
        used = {name: text for name, text in shared.items() if f"{{{name}}}" in whole}
        told |= {name: text.format_map(told) for name, text in used.items()}
        entries = _entries(self.fill(plan, found), declared["units"])
        for what, to, *group in declared.get("ratios", ()):
            entries += ratios(entries, what, to, group=group[0] if group else None)
        title = declared["title"].format_map(told)
        return Result(
            self.name,
            declared["source"],
            title,
            tuple(entries),
            _chart(declared.get("chart"), entries, title if plan.quick else None),
            tuple(note.format_map(told) for note in declared.get("notes", ())),
        )


def section(
    steps: Callable[[Plan], Sequence[Step]], *tables: Table, name: str = "", paper: str = ""
) -> Section:
    """A section of tables that come of the same steps; its name is the first one's unless said."""
    sources = [str(declarations()[table.name]["source"]).partition(", ") for table in tables]
    whose, covers = sources[0][0], tuple(dict.fromkeys(where for _, _, where in sources))

    def report(plan: Plan, found: Found) -> list[Result]:
        return [table.result(plan, found) for table in tables]

    return Section(name or tables[0].name, paper or whose, steps, report, covers)


@functools.cache
def declarations() -> dict[str, Any]:
    """What tables.toml declares, by name."""
    return load_toml(Path(__file__).with_name("tables.toml"))


def _entries(lines: Iterable[Line], units: Mapping[str, str]) -> list[Entry]:
    out = []
    for line in lines:
        for what, number in line.numbers.items():
            if number is None:
                continue
            marked = number if isinstance(number, Marked) else published(number)
            out.append(Entry(line.row, line.who, line.group, what, units[what], marked, line.x))
    return out


def _chart(
    declared: Mapping[str, Any] | None, entries: Sequence[Entry], title: str | None
) -> Chart | None:
    """Return the chart; `title` is for a quick run, which may lack a number that the picture's has."""
    if declared is None:
        return None
    try:
        says = filled(declared["says"], entries)
    except LookupError:
        if title is None:
            raise
        says = title
    return Chart(**{**declared, "whats": tuple(declared["whats"]), "says": says})

"""Tables as declarations: what a module fills in is numbers; tables.toml says all else.

A declaration has `source` ("FLASHE, Table 2"), `title`, `units` of the columns, `chart`, `ratios`
(what, to whom, of which group only) and `notes`. Titles and notes are format strings: names in braces
are what the module tells, or texts of [shared]; {quick} is the one that `quick` names, in a quick run,
else nothing. A note that comes to nothing is left out.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from flhe_lab.tables.chart import Chart
from flhe_lab.tables.marked import Marked, published
from flhe_lab.tables.result import Entry, Group, Result, ratios
from flhe_lab.tables.section import Found, Plan, Section, Step

TEXTS = "tables.toml"

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
    chart: Callable[[Plan, Found], Chart] | None = None
    """(plan, found) -> chart, where it is not declared."""

    @property
    def source(self) -> str:
        """Paper and place: "FLASHE, Table 2"."""
        return str(_declared()[self.name]["source"])

    def result(self, plan: Plan, found: Found) -> Result:
        """Fill it in."""
        declared = _declared()[self.name]
        told = dict(self.told(plan, found)) if self.told else {}
        told |= {name: text.format_map(told) for name, text in _shared(declared).items()}
        quick = _declared()["shared"].get(declared.get("quick"), "")
        told["quick"] = quick if plan.quick else ""
        entries = _entries(self.fill(plan, found), declared["units"])
        for what, to, *group in declared.get("ratios", ()):
            entries += ratios(entries, what, to, group=group[0] if group else None)
        notes = (note.format_map(told) for note in declared.get("notes", ()))
        return Result(
            self.name,
            declared["source"],
            declared["title"].format_map(told),
            tuple(entries),
            self.chart(plan, found) if self.chart else _chart(declared.get("chart")),
            tuple(filter(None, notes)),
        )


def section(
    steps: Callable[[Plan], Sequence[Step]], *tables: Table, name: str = "", paper: str = ""
) -> Section:
    """A section of tables that come of the same steps; its name is the first one's unless said."""
    whose, _, _ = tables[0].source.partition(", ")
    covers = tuple(dict.fromkeys(table.source.partition(", ")[2] for table in tables))

    def report(plan: Plan, found: Found) -> list[Result]:
        return [table.result(plan, found) for table in tables]

    return Section(name or tables[0].name, paper or whose, steps, report, covers)


@functools.cache
def _declared() -> dict[str, Any]:
    text = resources.files(__package__).joinpath(TEXTS).read_text(encoding="utf-8")
    return tomllib.loads(text)


def _shared(declared: Mapping[str, Any]) -> dict[str, str]:
    """Texts of [shared] that a declaration names."""
    whole = "".join((declared["title"], *declared.get("notes", ())))
    return {name: text for name, text in _declared()["shared"].items() if f"{{{name}}}" in whole}


def _entries(lines: Iterable[Line], units: Mapping[str, str]) -> list[Entry]:
    out = []
    for line in lines:
        for what, number in line.numbers.items():
            if number is None:
                continue
            marked = number if isinstance(number, Marked) else published(number)
            out.append(Entry(line.row, line.who, line.group, what, units[what], marked, line.x))
    return out


def _chart(declared: Mapping[str, Any] | None) -> Chart | None:
    return None if declared is None else Chart(**{**declared, "whats": tuple(declared["whats"])})

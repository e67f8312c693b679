"""What tests of tables share: plans, entries by place, and results of one section."""

from __future__ import annotations

import pytest

from flhe_lab.tables.catalog import sections
from flhe_lab.tables.result import Entry, Result
from flhe_lab.tables.rounds import row
from flhe_lab.tables.section import Found, Plan

QUICK, FULL = Plan(quick=True), Plan(quick=False)
PLANS = pytest.mark.parametrize("plan", [QUICK, FULL], ids=["quick", "full"])


def quietly(_what: str) -> None:
    """Nobody listens."""


def result(name: str, plan: Plan, found: Found) -> Result:
    """The result of this name."""
    for section in sections():
        if name.startswith(section.name):
            for each in section.report(plan, found):
                if each.name == name:
                    return each
    raise KeyError(name)


def of(table: Result, model: str, who: str, what: str, *, paper: bool = False) -> Entry:
    """The one entry of that name."""
    [entry] = [
        e
        for e in table.entries
        if (e.row, e.who, e.what, e.group == "paper") == (row(model), who, what, paper)
    ]
    return entry

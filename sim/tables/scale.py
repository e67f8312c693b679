"""SASH among more and more virtual clients on Ray; ten times as many, projected.

Not in the paper, which names thousands of clients (Sec. 1 and 4.1.2) and shows 500. `flhe crowd` runs
the same up to 1,000, which takes longer than all tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from flhe_lab.crowd.command import TIMEOUT_S
from flhe_lab.crowd.found import Asked
from flhe_lab.crowd.found import Found as Crowd
from flhe_lab.crowd.report import FURTHER, LARGE, QUANTITIES
from flhe_lab.crowd.run import RayRun
from flhe_lab.tables.result import counted, measured, projected
from flhe_lab.tables.table import Found, Line, Plan, Say, Section, Step, Table, section

VALUES = 10_000
SASH = "SASH"


def asked(plan: Plan) -> list[Asked]:
    """Federations: one that starts at once where it must be quick."""
    if plan.quick:
        return [Asked(12, VALUES, 1)]
    return [Asked(clients, VALUES, 2) for clients in (50, 100, 150, 200)]


def _step(one: Asked) -> Step:
    def work(say: Say) -> dict[str, Any]:
        return asdict(RayRun(one, TIMEOUT_S, lambda _n, _m, what: say(what)).run())

    key = f"ray-{one.clients}-{one.values}-{one.rounds}"
    return Step(key, work, f"{one.clients} clients on Ray", threads=0)


def _crowds(plan: Plan, found: Found) -> list[Crowd]:
    return [Crowd.of(found[_step(one).key]) for one in asked(plan)]


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    members = _crowds(plan, found)
    further = FURTHER * members[-1].asked.clients
    for quantity in QUANTITIES:
        for run in members:
            n, value = run.asked.clients, quantity.of(run)
            number = counted(value) if quantity.unit == "kB" else measured(value)
            yield Line(f"{n:,} clients", SASH, "ours", {quantity.name: number}, n)
        if law := quantity.law(members):
            number = projected(law.at(further))
            yield Line(f"{further:,} clients", SASH, "ours", {quantity.name: number}, further)


def _growth(plan: Plan, found: Found) -> dict[str, object]:
    members = _crowds(plan, found)
    laws = [
        f"{SASH}, {quantity.name}: {law.name}, off by {law.residual:.0%} at most"
        for quantity in QUANTITIES
        if (law := quantity.law(members))
    ]
    growth = (
        f"Growth as theory says, from {LARGE} clients on, and how "
        f"far the points lie from it: {'; '.join(laws)}"
    )
    return {"growth": growth if laws else ""}


SECTIONS: Sequence[Section] = (
    section(
        lambda plan: [_step(one) for one in asked(plan)],
        Table("sash-scale", _lines, _growth),
        paper="SASH",
    ),
)

"""SASH among more and more virtual clients on Ray; ten times as many, projected.

Not in the paper, which names thousands of clients (Sec. 1 and 4.1.2) and shows 500. `flhe crowd` runs
the same up to 1,000, which takes longer than all tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from flhe.keys.masking import PACKED_FROM
from flhe.sim.crowd.command import TIMEOUT_S
from flhe.sim.crowd.found import Asked
from flhe.sim.crowd.found import Found as Crowd
from flhe.sim.crowd.report import FURTHER, QUANTITIES, kinds
from flhe.sim.crowd.run import RayRun
from flhe.sim.tables.marked import counted, measured, projected
from flhe.sim.tables.section import Found, Plan, Say, Section, Step
from flhe.sim.tables.table import Line, Table, section

VALUES = 10_000
NEIGHBOURS = 150


def asked(plan: Plan) -> list[Asked]:
    """Federations: one that starts at once where it must be quick."""
    if plan.quick:
        return [Asked(12, VALUES, 1)]
    return [Asked(clients, VALUES, 2) for clients in (50, 100, 150, 200)]


def _step(one: Asked) -> Step:
    def work(say: Say) -> dict[str, Any]:
        return asdict(RayRun(one, TIMEOUT_S, lambda _n, what: say(what)).run())

    key = f"ray-{one.clients}-{one.values}-{one.rounds}-0"
    about = f"{one.clients} clients on Ray"
    return Step(key, work, about, 25.0 + 0.5 * one.clients, threads=0)


def _crowds(plan: Plan, found: Found) -> dict[str, list[Crowd]]:
    seen = [Crowd(**{**found[_step(one).key], "asked": one}) for one in asked(plan)]
    return dict(kinds(seen))


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    for kind, members in _crowds(plan, found).items():
        further = FURTHER * members[-1].asked.clients
        for quantity in QUANTITIES:
            for run in members:
                n, value = run.asked.clients, quantity.of(run)
                number = counted(value) if quantity.unit == "kB" else measured(value)
                yield Line(f"{n:,} clients", kind, "ours", {quantity.name: number}, n)
            if law := quantity.law(members):
                number = projected(law.at(further))
                yield Line(f"{further:,} clients", kind, "ours", {quantity.name: number}, further)


def _growth(plan: Plan, found: Found) -> dict[str, object]:
    laws = [
        f"{kind}, {quantity.name}: {law.name}, off by {law.residual:.0%} at most"
        for kind, members in _crowds(plan, found).items()
        for quantity in QUANTITIES
        if (law := quantity.law(members))
    ]
    growth = (
        f"Growth as theory says, from {PACKED_FROM} clients on, where shares are packed, and how "
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

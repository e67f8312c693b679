"""SASH among more and more virtual clients on Ray; ten times as many, projected.

Not in the paper, which names thousands of clients (Sec. 1 and 4.1.2) and shows 500. `flhe crowd` runs
the same up to 1,000, which takes longer than all tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flhe.keys.masking import PACKED_FROM
from flhe.sim.crowd.command import TIMEOUT_S
from flhe.sim.crowd.found import Asked
from flhe.sim.crowd.found import Found as Crowd
from flhe.sim.crowd.report import FURTHER, QUANTITIES, kinds
from flhe.sim.crowd.run import RayRun
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.marked import Marked, counted, measured, projected
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.section import Found, Plan, Say, Section, Step

VALUES = 10_000
DRAWN = (
    "client, round",
    "server, round",
    "round, all clients",
    "bytes of a client, round",
    "server's process",
    "all processes",
)


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


def _number(unit: str, value: float) -> Marked:
    return counted(value) if unit == "kB" else measured(value)


def _report(plan: Plan, found: Found) -> list[Result]:
    crowds = [Crowd(**{**found[_step(one).key], "asked": one}) for one in asked(plan)]
    out: list[Entry] = []
    laws: list[str] = []
    for kind, members in kinds(crowds).items():
        further = FURTHER * members[-1].asked.clients
        for quantity in QUANTITIES:
            for run in members:
                n, value = run.asked.clients, quantity.of(run)
                number = _number(quantity.unit, value)
                out.append(
                    Entry(f"{n:,} clients", kind, "ours", quantity.name, quantity.unit, number, n)
                )
            law = quantity.law(members)
            if law is None:
                continue
            number = projected(law.at(further))
            row = f"{further:,} clients"
            out.append(Entry(row, kind, "ours", quantity.name, quantity.unit, number, further))
            laws.append(f"{kind}, {quantity.name}: {law.name}, off by {law.residual:.0%} at most")
    notes = [
        f"{VALUES:,} values, Flower's simulation engine, an actor for each processor; the model at "
        "the end is what the clients' steps make. Seconds of client and server are of their processor; "
        "an epoch's key agreement is paid once. The server's process is also the engine's: it holds "
        "all messages. Memory of all processes is projected as the sum of its parts. MB are of 10^6 "
        "bytes. `flhe crowd` runs up to 1,000 clients."
    ]
    if laws:
        notes.append(
            f"Growth as theory says, from {PACKED_FROM} clients on, where shares are packed, and how "
            "far the points lie from it: " + "; ".join(laws)
        )
    chart = Chart("lines", DRAWN, log=True, log_x=True, xlabel="clients")
    title = "virtual clients on Ray"
    return [Result("sash-scale", "Scale, SASH", title, tuple(out), chart, tuple(notes))]


SECTIONS: Sequence[Section] = (
    Section("sash-scale", "SASH", lambda plan: [_step(one) for one in asked(plan)], _report),
)

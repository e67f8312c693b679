"""SASH's Figures 3 and 4, its 20x over SecAgg, and its inflation factor.

A point is one setting: one client and the server of everybody who takes part, in turns. Among 50
clients SecAgg takes part twice, flhe's own and Flower's SecAgg+ as it is installed: see the notes.

Source: SASH, Sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from flhe_lab.bench import secure_sums as sums
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.members import SashMembers
from flhe_lab.tables.result import Group, Marked, counted, measured
from flhe_lab.tables.table import Fill, Found, Line, Plan, Say, Section, Step, Table, section

TOTAL = "client + server"
SHARED, INFLATION = "key agreement, up and down", "inflation, to 16 bits a value"
VALUES = 100_000
FEW = 50
HEADLINE = Setting(VALUES, FEW, FEW * 3 // 10)
"""Where the paper says 20x."""

OURS = {
    sums.SASH: sums.SASH,
    sums.SASH_PLUS: sums.SASH_PLUS,
    sums.SECAGG: "SecAgg, flhe's",
    sums.SECAGG_PLUS: "SecAgg+, flhe's",
}
FLOWER = "SecAgg+, Flower's"


def many(plan: Plan) -> int:
    """N where it does not vary: the paper's 500; fewer where it must be quick."""
    return 200 if plan.quick else 500


def _point(setting: Setting, plan: Plan) -> Step:
    makes = dict(sums.MAKES)
    if plan.quick and setting != HEADLINE:  # a point of Flower's takes the better part of a minute
        del makes[sums.FLOWERS]
    n, m, d = setting.cohort, setting.values, setting.dropouts / setting.cohort
    key = f"secagg-{n}-{m}-{d:g}"
    repeats = plan.repeats

    def work(say: Say) -> dict[str, Any]:
        found = sums.timed(setting, makes, repeats, lambda _n, _m, what: say(what))
        return {name: each.least for name, each in found.items()}

    return Step(key, work, f"secure aggregation, {n} clients, {m:,} values, dropout {d:g}")


Places = Callable[[Plan], Sequence[tuple[str, float, Setting]]]
"""Plan -> row, place on the axis, and setting of each point."""


def _over_values(plan: Plan) -> list[tuple[str, float, Setting]]:
    """Fig. 3a: over M, nobody drops out."""
    sizes = (10_000, 100_000) if plan.quick else (10_000, 30_000, 100_000, 300_000, 1_000_000)
    return [(f"{m:,} values", m, Setting(m, many(plan))) for m in sizes]


def _over_clients(plan: Plan) -> list[tuple[str, float, Setting]]:
    """Fig. 3b and 4: over N at M = 100,000 and a dropout of 0.1."""
    counts = (50, 200) if plan.quick else (50, 100, 200, 300, 400, 500)
    return [(f"{n} clients", n, Setting(VALUES, n, n // 10)) for n in counts]


def _over_dropout(plan: Plan, clients: int = 0) -> list[tuple[str, float, Setting]]:
    """Fig. 3c, N = 50, and Fig. 4: over the dropout at M = 100,000."""
    n = clients or many(plan)
    tenths = (0, 1, 3) if plan.quick else (0, 1, 2, 3)
    return [(f"dropout {d / 10:g}", d / 10, Setting(VALUES, n, n * d // 10)) for d in tenths]


_few = partial(_over_dropout, clients=FEW)


def _lines(places: Places, who: Sequence[str]) -> Fill:
    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        for row, x, setting in places(plan):
            for contender, taken in found[_point(setting, plan).key].items():
                name = OURS.get(contender, FLOWER)
                if name in who:
                    group: Group = "peer" if name == FLOWER else "ours"
                    client, server = _sides(taken)
                    numbers = {TOTAL: client + server, "client": client, "server": server}
                    yield Line(row, name, group, numbers, x)

    return fill


def _sides(taken: Any) -> tuple[Marked, Marked]:
    return measured(taken["client"]), measured(taken["server"])


def ratio_step(plan: Plan) -> Step:
    """The run of the headline: N = 50, M = 100,000, 30% dropped out."""
    return _point(HEADLINE, plan)


def ratio_of(plan: Plan, found: Found, contender: str = sums.FLOWERS) -> Marked:
    """How many times SASH's seconds, client and server together, SecAgg takes there.

    `contender` is Flower's (FLOWERS), or flhe's own (SECAGG).
    """
    taken = found[ratio_step(plan).key]
    theirs, ours = _sides(taken[contender]), _sides(taken[sums.SASH])
    return (theirs[0] + theirs[1]) / (ours[0] + ours[1])


TWO, FOUR = ("SASH", "SecAgg, flhe's"), tuple(OURS.values())


def _ratios(plan: Plan, found: Found) -> dict[str, object]:
    return {"flower": ratio_of(plan, found).value, "ours": ratio_of(plan, found, sums.SECAGG).value}


def _many(plan: Plan, _found: Found) -> dict[str, object]:
    return {"many": many(plan)}


INFLATED = 500
"""Clients at which the paper says 2.06."""

PLAIN_BYTES = 2
"""Of one value of w = 16 bits, which the paper's inflation is relative to."""


def _bytes_step(_plan: Plan) -> Step:
    def work(say: Say) -> dict[str, Any]:
        say("counting")
        found = {}
        for clients in (FEW, INFLATED):
            # The agreement's bytes have no M in them.
            members = SashMembers(Setting(1_000, clients))
            upload = members.adder.nbytes(1_000_000)
            found[str(clients)] = {"upload": upload, "agreement": members.client_bytes}
        return found

    return Step("sash-bytes", work, "bytes of SASH's agreement")


def _inflation(plan: Plan, found: Found) -> Iterator[Line]:
    for clients, sizes in found[_bytes_step(plan).key].items():
        upload, agreement = counted(sizes["upload"]), counted(sizes["agreement"])
        factor = (upload + agreement) / (PLAIN_BYTES * 1_000_000)
        numbers = {"upload": upload / 1e6, SHARED: agreement / 1e6, INFLATION: factor}
        yield Line(f"{clients} clients, 1,000,000 values", "SASH", "ours", numbers)
    yield Line(f"{INFLATED} clients, 1,000,000 values", "SASH", "paper", {INFLATION: 2.06})


def _figure_3c(plan: Plan, found: Found) -> Iterator[Line]:
    """With what the paper says of its ratio, whose SecAgg is neither of ours."""
    yield from _lines(_few, (*TWO, FLOWER))(plan, found)
    yield Line("dropout 0.3", "SecAgg", "paper", {f"{TOTAL}, to SASH": 20.0}, 0.3)


def _steps(*several: Places) -> Callable[[Plan], list[Step]]:
    return lambda plan: [_point(one, plan) for places in several for _, _, one in places(plan)]


SECTIONS: Sequence[Section] = (
    section(
        _steps(_over_values, _over_clients, _few),
        Table("sash-figure-3a", _lines(_over_values, TWO), _many),
        Table("sash-figure-3b", _lines(_over_clients, FOUR)),
        Table("sash-figure-3c", _figure_3c, _ratios),
        name="sash-figure-3",
    ),
    section(
        _steps(_over_dropout),
        Table("sash-figure-4b", _lines(_over_dropout, FOUR), _many),
        name="sash-figure-4",
    ),
    section(
        lambda plan: [_bytes_step(plan)],
        Table("sash-inflation", _inflation),
    ),
)

"""FLASHE, Figures 7 and 8 and Table 4: what a round takes, what it transfers, what training costs.

Figures 10 and 11, of a tenth of the values, are in `flashe_sparse`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flhe.sim.advise import prices
from flhe.sim.convergence import Reported, project, reported
from flhe.sim.tables import flashe_sparse, phase_costs
from flhe.sim.tables.dots import dots
from flhe.sim.tables.flashe_paper import COHORT, GIB, MODELS, MODES
from flhe.sim.tables.flashe_round import (
    LARGEST,
    LINK,
    QUICK,
    SETTING,
    iteration,
    measured_models,
    stands_for,
    training,
    training_steps,
)
from flhe.sim.tables.headlines import cnn_step
from flhe.sim.tables.learned import NAMES as MODEL_NAMES
from flhe.sim.tables.learned import VALUES
from flhe.sim.tables.marked import projected, published
from flhe.sim.tables.phase_costs import (
    BFV,
    BFV_PAPER,
    CKKS,
    CKKS_PAPER,
    FLASHE,
    PHE_BATCHED,
    PLAIN,
)
from flhe.sim.tables.result import Entry, Result, ratios
from flhe.sim.tables.rounds import PARTS, TOTAL, Round, entries, parts, row, scaled
from flhe.sim.tables.section import Found, Plan, Section, Step
from flhe.sim.tables.turns import Cost

NAMES = (PLAIN, FLASHE, PHE_BATCHED, BFV_PAPER, BFV, CKKS_PAPER, CKKS)

UP, DOWN, BOTH = "up", "down", "traffic"

PLAIN_NOTE = (
    "Plain is float32, 4 bytes a value. The paper's plain traffic counts 20 bits a value, as "
    "FLASHE's: 374 rounds of 0.27 million values, up and down, are its 0.47 GB at that width. "
    "So it finds no overhead where FLASHE here sends 0.625 of plain."
)
PEERS_NOTE = (
    "BFV and CKKS are TenSEAL's, with the paper's parameters, and with the shortest that hold a "
    "sum of ten: what a user would choose who sends nothing but sums."
)
PAPER_7 = (
    "Fig. 7 is a picture without numbers. The paper's iterations here are the hours of its "
    "Table 4 by the rounds of its Sec. 6.3 (374, 95, 277). They are longer than 40 Mb/s "
    "explains: less Table 2's seconds, the CNN's traffic under FV and CKKS passes at some 9 to "
    "11 Mb/s a client."
)
PAPER_8 = (
    "Fig. 8 is a picture without numbers. The paper's traffic here is that of its Table 4, of "
    "one client, by the rounds of its Sec. 6.3."
)
PREPARED = (
    "FLASHE computes nothing ahead here; what that saves is in Fig. 13. The paper's text suggests that "
    "its FLASHE does."
)


def steps(plan: Plan) -> list[Step]:
    """Everybody's costs at each model, in turns, and training."""
    return [_step(model, plan) for model in measured_models(plan)] + training_steps(plan)


def _step(model: str, plan: Plan) -> Step:
    """The largest model's is the headlines', where a few more take turns."""
    if model == LARGEST:
        return cnn_step(plan)
    return phase_costs.step(VALUES[model], COHORT, NAMES, plan)


def costs(model: str, plan: Plan, found: Found) -> dict[str, Cost]:
    """Everybody's costs at one model."""
    at, factor = stands_for(model, plan)
    read = phase_costs.read(found[_step(at, plan).key])
    return {name: scaled(read[name], factor) for name in NAMES}


def _rounds(model: str, plan: Plan, found: Found) -> dict[str, tuple[Cost, Round]]:
    train = training(model, found, plan)
    return {n: (cost, iteration(cost, train)) for n, cost in costs(model, plan, found).items()}


def _notes(plan: Plan, *notes: str) -> tuple[str, ...]:
    return (*notes, QUICK) if plan.quick else notes


def _lines(model: str) -> list[tuple[str, Reported]]:
    """Table 4's lines of a model, by the paper's names."""
    name = MODEL_NAMES[model]
    return [(said, reported("FLASHE", name, mode)) for mode, said in MODES.items()]


def report_7(plan: Plan, found: Found) -> list[Result]:
    """Where an iteration goes."""
    out: list[Entry] = []
    for model in MODELS:
        for name, (cost, seen) in _rounds(model, plan, found).items():
            out += entries(row(model), name, cost.group, parts(seen), "s")
        for said, line in _lines(model):
            seconds = published(line.hours * 3600 / line.epochs)
            out.append(Entry(row(model), said, "paper", TOTAL, "s", seconds))
    out += ratios(out, TOTAL, FLASHE)
    notes = _notes(plan, SETTING, PEERS_NOTE, PREPARED, PAPER_7)
    title = "time of one iteration at a client"
    chart = dots(out, (*PARTS[1:], TOTAL), log=True)
    return [Result("flashe-figure-7", "FLASHE, Figure 7", title, tuple(out), chart, notes)]


def report_8(plan: Plan, found: Found) -> list[Result]:
    """What an iteration transfers."""
    out: list[Entry] = []
    for model in MODELS:
        for name, cost in costs(model, plan, found).items():
            size = cost.upload_bytes / 1e6
            numbers = {UP: size, DOWN: size, BOTH: size * 2}
            out += entries(row(model), name, cost.group, numbers, "MB")
        for said, line in _lines(model):
            number = published(line.traffic_gb * GIB / 1e6 / line.epochs)
            out.append(Entry(row(model), said, "paper", BOTH, "MB", number))
    out += ratios(out, BOTH, FLASHE)
    notes = _notes(
        plan, "One client, up and down; MB of 10^6 bytes.", PLAIN_NOTE, PEERS_NOTE, PAPER_8
    )
    chart = dots(out, (BOTH,), log=True)
    title = "traffic of one iteration at a client"
    return [Result("flashe-figure-8", "FLASHE, Figure 8", title, tuple(out), chart, notes)]


def report_table_4(plan: Plan, found: Found) -> list[Result]:
    """Hours, traffic and money until convergence."""
    out: list[Entry] = []
    bills = prices.FLASHE
    for model in MODELS:
        lines = _lines(model)
        rounds = lines[0][1].epochs
        for name, (cost, seen) in _rounds(model, plan, found).items():
            end = project(seen.breakdown, rounds, bills, LINK, COHORT)
            told = ((HOURS, end.hours), (TRAFFIC, end.traffic_gb), (PRICE, end.total_usd))
            for (what, unit), value in told:
                out.append(Entry(row(model), name, cost.group, what, unit, projected(value)))
        for said, line in lines:
            assert line.usd is not None
            told = ((HOURS, line.hours), (TRAFFIC, line.traffic_gb), (PRICE, line.usd))
            for (what, unit), value in told:
                out.append(Entry(row(model), said, "paper", what, unit, published(value)))
    for what, _ in (HOURS, TRAFFIC, PRICE):
        out += ratios(out, what, PLAIN)
    notes = _notes(
        plan,
        "Projected as the paper does: an iteration times its rounds to convergence (374, 95, "
        "277), which are taken over for everybody. Traffic is of one client, up and down, GB of "
        f"2^30 bytes; the price is of all ten, the server, and what leaves them: {bills.source}. It "
        "is that of machines of 16 processors, of which one works here.",
        SETTING,
        PLAIN_NOTE,
        PEERS_NOTE,
        "The paper's Sec. 6.3 tells savings of 26 to 73% against Paillier, 49 to 89% against FV "
        "and 69 to 94% against CKKS. Its Table 4 has 26 to 69%, 64 to 91% and 73 to 94%; the "
        "ranges told are those of the three models.",
    )
    chart = dots(out, (HOURS[0], TRAFFIC[0], PRICE[0]), log=True)
    title = "training to convergence: hours, traffic, price"
    return [Result("flashe-table-4", "FLASHE, Table 4", title, tuple(out), chart, notes)]


HOURS, TRAFFIC, PRICE = ("time", "h"), ("traffic", "GB"), ("price", "USD")

SECTIONS: Sequence[Section] = (
    Section("flashe-figure-7", "FLASHE", steps, report_7, ("Figure 7",)),
    Section("flashe-figure-8", "FLASHE", steps, report_8, ("Figure 8",)),
    Section("flashe-table-4", "FLASHE", steps, report_table_4, ("Table 4",)),
    *flashe_sparse.SECTIONS,
)

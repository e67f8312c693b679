"""An iteration of BatchCrypt's evaluation, and of ESAFL's, which is the same.

BatchCrypt's Figures 7 to 9 and 11 and Table 4; ESAFL's Figures 4 to 6 and Table 5: nine clients in five
data centers. Everybody is measured in one step a model, whichever paper asks. Their figures are
pictures: what `iteration_s` and `traffic_mb` give is what texts and tables imply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flhe_lab.advise import prices, wan
from flhe_lab.papers.convergence import Projection, Reported, billed, reported
from flhe_lab.papers.packing import TABLE_3
from flhe_lab.papers.published import rows
from flhe_lab.tables import phase_costs as costs_of
from flhe_lab.tables.evaluation import TOTAL, Evaluation, Round
from flhe_lab.tables.learned import NAMES, VALUES
from flhe_lab.tables.marked import Marked, projected
from flhe_lab.tables.phase_costs import BATCHCRYPT_2048, ESAFL_NARROW, PHE, PHE_BATCHED, Cost
from flhe_lab.tables.section import Plan, Section, Step
from flhe_lab.tables.table import Fill, Numbers, Table, section

MODELS = ("fcn", "alexnet", "lstm")
"""Table 3, by growing size; FMNIST, CIFAR and LSTM there."""

COHORT = 9
LINK = wan.named("batchcrypt")
EVALUATION = Evaluation(MODELS, COHORT, LINK, prices.BATCHCRYPT, 1, MODELS[0])

MB = 1 << 20
"""The papers': 8 bytes a value of nine clients are Sec. 3.1's 6.98 MB."""

FATE, BATCHCRYPT, ESAFL, PLAIN = "FATE", "BatchCrypt", "ESAFL", "plain"
"""Modes, as `convergence.REPORTED` has them."""

ITERATIONS = {"fcn": 52, "alexnet": 44, "lstm": 174}
"""Iterations of an epoch. Told nowhere: stock FATE's hours (Table 4) by its seconds an iteration (Sec.
3.1) and its epochs are 52.03, 44.01 and 173.99."""

MODES: Mapping[str, str] = {
    PHE: FATE,
    PHE_BATCHED: BATCHCRYPT,
    BATCHCRYPT_2048: BATCHCRYPT,
    costs_of.BATCHCRYPT: BATCHCRYPT,
    costs_of.ESAFL: ESAFL,
    ESAFL_NARROW: ESAFL,
    costs_of.PLAIN: PLAIN,
}
"""Who is measured -> which of the papers' it stands for, and whose epochs it takes."""

BATCHED = (PHE_BATCHED, BATCHCRYPT_2048, costs_of.BATCHCRYPT)
ENCRYPTED, CLEAR = (PHE, *BATCHED), (*BATCHED, costs_of.PLAIN)
TO_ESAFL = (PHE, PHE_BATCHED, BATCHCRYPT_2048, costs_of.ESAFL, ESAFL_NARROW)
ESAFLS = (costs_of.ESAFL, ESAFL_NARROW, costs_of.PLAIN)
AGGREGATION, TRAFFIC = "server's additions", "traffic"
BILL = ("instances", "network", "total")

# --- what the papers say ---


@dataclass(frozen=True, slots=True)
class Iteration:
    """Of BatchCrypt's Sec. 3.1 and 6.3, all nine clients, up and down."""

    model: str
    stock_s: float  # With stock FATE
    stock_gb: float  # With stock FATE
    to_plain: float  # How many times the plain one's seconds
    plain_mb: float
    faster: float  # How many times less time with BatchCrypt
    smaller: float  # The same, of traffic


STOCK = {each.model: each for each in rows("batchcrypt", "iterations", Iteration)}


def line(paper: str, model: str, mode: str) -> Reported:
    """A line of BatchCrypt's Table 4, or of ESAFL's Table 5."""
    return reported(paper, NAMES[model], mode)


def iteration_s(paper: str, model: str, mode: str) -> float:
    """Seconds of an iteration: stock FATE's as told, the others' by the ratios told.

    ESAFL's own are hours of its Table 5.
    """
    if paper == ESAFL and mode in (ESAFL, PLAIN):
        said = line(paper, model, mode)
        return said.hours * 3600 / (said.epochs * ITERATIONS[model])
    stock = STOCK[model]
    return stock.stock_s / {FATE: 1, BATCHCRYPT: stock.faster, PLAIN: stock.to_plain}[mode]


def traffic_mb(paper: str, model: str, mode: str) -> float:
    """MB of an iteration, all nine clients, up and down; ESAFL's own are nine times its Table 3."""
    stock, own = STOCK[model], TABLE_3[MODELS.index(model)]
    if paper == ESAFL and mode in (ESAFL, PLAIN):
        return COHORT * (own.traffic[1] if mode == ESAFL else own.plain_traffic)
    gigabytes = stock.stock_gb * 1024
    return {FATE: gigabytes, BATCHCRYPT: gigabytes / stock.smaller, PLAIN: stock.plain_mb}[mode]


def _paper_bill(model: str, mode: str) -> Numbers:
    """A line of Table 4 at the prices of Sec. 6.5."""
    said = line(BATCHCRYPT, model, mode)
    each = said.traffic_gb / 2 / COHORT
    bill = billed(said.hours, each, each, prices.BATCHCRYPT, LINK, COHORT)
    return dict(zip(BILL, (bill.instance_usd, bill.network_usd, bill.total), strict=True))


# --- what is measured ---


def _step(model: str, plan: Plan) -> Step:
    return costs_of.step(VALUES[model], COHORT, tuple(MODES), plan)


steps, costs = EVALUATION.steps(_step), partial(EVALUATION.costs, _step)


def everybodys_mb(cost: Cost) -> Marked:
    """What all nine send and receive in an iteration, MB of 2^20 bytes."""
    return cost.upload_bytes * (2 * COHORT) / MB


# --- what tables are filled with ---


def _breakdown(_model: str, cost: Cost, seen: Round) -> Numbers:
    """Where an iteration goes: a client's parts, the whole, and what the server adds."""
    return seen.parts | {AGGREGATION: cost.add_s * COHORT}


def _traffic(_model: str, cost: Cost, _seen: Round) -> Numbers:
    return {TRAFFIC: everybodys_mb(cost)}


def _both(_model: str, cost: Cost, seen: Round) -> Numbers:
    return {TOTAL: seen.parts[TOTAL], TRAFFIC: everybodys_mb(cost)}


def _end(paper: str, model: str, cost: Cost, seen: Round) -> Projection:
    """Training to convergence, over the epochs that the paper's table has for whom it stands for."""
    epochs = line(paper, model, MODES[cost.who]).epochs
    return EVALUATION.ends(seen, epochs * ITERATIONS[model])


def convergence_of(paper: str, names: Sequence[str], modes: Sequence[str]) -> Fill:
    """Epochs, hours and all nine clients' GB until convergence: ours, and the paper's of `modes`."""

    def ours(model: str, cost: Cost, seen: Round) -> Numbers:
        end = _end(paper, model, cost, seen)
        return {"time": projected(end.hours), TRAFFIC: projected(end.traffic_gb * COHORT)}

    def theirs(model: str, mode: str) -> Numbers:
        said = line(paper, model, mode)
        return {"time": said.hours, TRAFFIC: said.traffic_gb, "epochs": said.epochs}

    return EVALUATION.filled(costs(names), ours, modes, theirs)


def _bill(model: str, cost: Cost, seen: Round) -> Numbers:
    """What training to convergence costs."""
    bill = _end(BATCHCRYPT, model, cost, seen).bill
    usd = map(projected, (bill.instance_usd, bill.network_usd, bill.total))
    return dict(zip(BILL, usd, strict=True))


def iterations_of(
    paper: str,
    names: Sequence[str],
    beside: Sequence[str],
    modes: Sequence[str],
    two: Sequence[str],
) -> tuple[Fill, Fill, Fill]:
    """Where an iteration goes; what it transfers; both, of those beside plain.

    `names` and the paper's `modes` are in the first two, `beside` and `two` of its modes in the third.
    """
    every, some, filled = costs(names), costs(beside), EVALUATION.filled

    def seconds(model: str, mode: str) -> Numbers:
        return {TOTAL: iteration_s(paper, model, mode)}

    def megabytes(model: str, mode: str) -> Numbers:
        return {TRAFFIC: traffic_mb(paper, model, mode)}

    return (
        filled(every, _breakdown, modes, seconds),
        filled(every, _traffic, modes, megabytes),
        filled(some, _both, two, lambda *at: {**seconds(*at), **megabytes(*at)}),
    )


STOCK_MODES, FASTER = (FATE, BATCHCRYPT), (FATE, BATCHCRYPT, ESAFL)
BILLED = (PHE, *CLEAR)
_7, _8, _9 = iterations_of(BATCHCRYPT, ENCRYPTED, CLEAR, STOCK_MODES, (BATCHCRYPT, PLAIN))
_4, _5, _6 = iterations_of(ESAFL, TO_ESAFL, ESAFLS, FASTER, (ESAFL, PLAIN))
FILLS: Mapping[str, Fill] = {
    "batchcrypt-figure-7": _7,
    "batchcrypt-figure-8": _8,
    "batchcrypt-figure-9": _9,
    "batchcrypt-table-4": convergence_of(BATCHCRYPT, BILLED, (*STOCK_MODES, PLAIN)),
    "batchcrypt-figure-11": EVALUATION.filled(
        costs(BILLED), _bill, (*STOCK_MODES, PLAIN), _paper_bill
    ),
    "esafl-figure-4": _4,
    "esafl-figure-5": _5,
    "esafl-figure-6": _6,
    "esafl-table-5": convergence_of(ESAFL, (*TO_ESAFL, costs_of.PLAIN), (*FASTER, PLAIN)),
}
"""Table -> what it holds."""

ROUNDS = {name: section(steps, Table(name, fill)) for name, fill in FILLS.items()}
SECTIONS: Sequence[Section] = tuple(
    found for name, found in ROUNDS.items() if name.startswith("batchcrypt")
)

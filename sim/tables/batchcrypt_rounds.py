"""An iteration of BatchCrypt's evaluation, and of ESAFL's, which is the same.

BatchCrypt's Figures 7 to 9 and 11 and Table 4; ESAFL's Figures 4 to 6 and Table 5: nine clients in five
data centers. Everybody is measured in one step a model, whichever paper asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flhe_lab.advise import prices, wan
from flhe_lab.papers.convergence import Projection, project
from flhe_lab.tables import batchcrypt_costs, esafl_packing
from flhe_lab.tables import batchcrypt_paper as paper
from flhe_lab.tables import phase_costs as costs_of
from flhe_lab.tables.batchcrypt_paper import (
    BATCHCRYPT,
    COHORT,
    ESAFL,
    FATE,
    LINK,
    MB,
    MODELS,
    PLAIN,
    line,
    rounds,
)
from flhe_lab.tables.learned import VALUES, batch_s, training_step
from flhe_lab.tables.marked import Marked, projected
from flhe_lab.tables.phase_costs import BATCHCRYPT_2048, ESAFL_NARROW, PHE, PHE_BATCHED
from flhe_lab.tables.rounds import TOTAL, Round, parts, played, row
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.table import Fill, Line, Table, section
from flhe_lab.tables.turns import Cost

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
TO_ESAFL = (PHE, PHE_BATCHED, BATCHCRYPT_2048, costs_of.ESAFL, ESAFL_NARROW)
AGGREGATION, TRAFFIC = "server's additions", "traffic"
BILL = ("instances", "network", "total")


def steps(plan: Plan) -> list[Step]:
    """Everybody's costs at each model, in turns, and training."""
    measured = MODELS[:1] if plan.quick else MODELS
    return [
        *(_step(model, plan) for model in measured),
        *(training_step(model, plan) for model in MODELS),
    ]


def _step(model: str, plan: Plan) -> Step:
    return costs_of.step(VALUES[model], COHORT, tuple(MODES), plan)


def costs(model: str, plan: Plan, found: Found, names: Iterable[str]) -> list[Cost]:
    """Costs of those names at one model."""
    at = MODELS[0] if plan.quick else model
    read = costs_of.read(found[_step(at, plan).key])
    return [read[name].scaled(VALUES[model] / VALUES[at]) for name in names]


def iterations(
    model: str, plan: Plan, found: Found, names: Iterable[str]
) -> Iterator[tuple[Cost, Round]]:
    """Cost and iteration of those names at one model."""
    train, links = batch_s(model, found, plan), LINK.links(COHORT)
    for cost in costs(model, plan, found, names):
        yield cost, played(cost, train, links)


def everybodys_mb(cost: Cost) -> Marked:
    """What all nine send and receive in an iteration, MB of 2^20 bytes."""
    return cost.upload_bytes * (2 * COHORT) / MB


def ends(
    whose: str, model: str, plan: Plan, found: Found, names: Iterable[str]
) -> Iterator[tuple[Cost, Projection]]:
    """Training to convergence, over the rounds that the paper's table has for whom each stands for."""
    for cost, seen in iterations(model, plan, found, names):
        count = rounds(whose, model, MODES[cost.who])
        yield cost, project(seen.breakdown, count, prices.BATCHCRYPT, LINK, COHORT)


# --- what tables are filled with: lines of all models ---

PapersNumbers = Callable[[str], Mapping[str, float]]
"""Model -> mode -> what a paper tells of it."""


def breakdown(plan: Plan, found: Found, names: Sequence[str]) -> Iterator[Line]:
    """Where an iteration goes: a client's parts, the whole, and what the server adds."""
    for model in MODELS:
        for cost, seen in iterations(model, plan, found, names):
            numbers = parts(seen) | {AGGREGATION: cost.add_s * COHORT}
            yield Line(row(model), cost.who, cost.group, numbers)


def traffic(plan: Plan, found: Found, names: Sequence[str]) -> Iterator[Line]:
    """What an iteration transfers."""
    for model in MODELS:
        for cost in costs(model, plan, found, names):
            yield Line(row(model), cost.who, cost.group, {TRAFFIC: everybodys_mb(cost)})


def told(what: str, numbers: PapersNumbers, modes: Sequence[str]) -> Iterator[Line]:
    """The paper's numbers of `modes`."""
    for model in MODELS:
        for mode in modes:
            yield Line(row(model), mode, "paper", {what: numbers(model)[mode]})


def times_of(names: Sequence[str], numbers: PapersNumbers, modes: Sequence[str]) -> Fill:
    """Where an iteration goes, beside the paper's whole."""

    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        yield from breakdown(plan, found, names)
        yield from told(TOTAL, numbers, modes)

    return fill


def traffic_of(names: Sequence[str], numbers: PapersNumbers, modes: Sequence[str]) -> Fill:
    """What an iteration transfers, beside the paper's."""

    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        yield from traffic(plan, found, names)
        yield from told(TRAFFIC, numbers, modes)

    return fill


def beside_plain(
    names: Sequence[str], seconds: PapersNumbers, megabytes: PapersNumbers, modes: Sequence[str]
) -> Fill:
    """An iteration's time and traffic, plain among them."""

    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        for each in breakdown(plan, found, names):
            yield Line(each.row, each.who, each.group, {TOTAL: each.numbers[TOTAL]})
        yield from traffic(plan, found, names)
        yield from told(TOTAL, seconds, modes)
        yield from told(TRAFFIC, megabytes, modes)

    return fill


def convergence_of(whose: str, names: Sequence[str], modes: Sequence[str]) -> Fill:
    """Epochs, hours and all nine clients' GB until convergence: ours, and the paper's of `modes`."""

    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        for model in MODELS:
            for cost, end in ends(whose, model, plan, found, names):
                ours = {"time": projected(end.hours), TRAFFIC: projected(end.traffic_gb * COHORT)}
                yield Line(row(model), cost.who, cost.group, ours)
            for mode in modes:
                said = line(whose, model, mode)
                theirs = {"time": said.hours, TRAFFIC: said.traffic_gb, "epochs": said.epochs}
                yield Line(row(model), mode, "paper", theirs)

    return fill


def _bill(plan: Plan, found: Found) -> Iterator[Line]:
    """What training to convergence costs."""
    for model in MODELS:
        names = (PHE, *BATCHED, costs_of.PLAIN)
        for cost, end in ends("BatchCrypt", model, plan, found, names):
            usd = map(projected, (end.instance_usd, end.network_usd, end.total_usd))
            yield Line(row(model), cost.who, cost.group, dict(zip(BILL, usd, strict=True)))
        for mode in (FATE, BATCHCRYPT, PLAIN):
            numbers = dict(zip(BILL, paper_usd(model, mode), strict=True))
            yield Line(row(model), mode, "paper", numbers)


def paper_usd(model: str, mode: str) -> tuple[float, float, float]:
    """Machines, network and both: a line of Table 4 at the prices of Sec. 6.5."""
    said = line("BatchCrypt", model, mode)
    half = said.traffic_gb / 2
    sites = Counter(site.name for site in LINK.placed(COHORT))
    leaving = {name: half * count / COHORT for name, count in sites.items()} | {wan.SERVER: half}
    bill = prices.cost(prices.BATCHCRYPT.on(LINK), said.hours, leaving, COHORT)
    return bill.instance_usd, bill.network_usd, bill.total


ENCRYPTED, CLEAR = (PHE, *BATCHED), (*BATCHED, costs_of.PLAIN)
ESAFLS = (costs_of.ESAFL, ESAFL_NARROW, costs_of.PLAIN)
STOCK, FASTER = (FATE, BATCHCRYPT), (FATE, BATCHCRYPT, ESAFL)
SECONDS, MEGABYTES = paper.iteration_s, paper.traffic_mb
ESAFL_SECONDS, ESAFL_MEGABYTES = paper.esafl_iteration_s, paper.esafl_traffic_mb

FILLS: Mapping[str, Fill] = {
    "batchcrypt-figure-7": times_of(ENCRYPTED, SECONDS, STOCK),
    "batchcrypt-figure-8": traffic_of(ENCRYPTED, MEGABYTES, STOCK),
    "batchcrypt-figure-9": beside_plain(CLEAR, SECONDS, MEGABYTES, (BATCHCRYPT, PLAIN)),
    "batchcrypt-table-4": convergence_of(
        "BatchCrypt", (*ENCRYPTED, costs_of.PLAIN), (*STOCK, PLAIN)
    ),
    "batchcrypt-figure-11": _bill,
    "esafl-figure-4": times_of(TO_ESAFL, ESAFL_SECONDS, FASTER),
    "esafl-figure-5": traffic_of(TO_ESAFL, ESAFL_MEGABYTES, FASTER),
    "esafl-figure-6": beside_plain(ESAFLS, ESAFL_SECONDS, ESAFL_MEGABYTES, (ESAFL, PLAIN)),
    "esafl-table-5": convergence_of("ESAFL", (*TO_ESAFL, costs_of.PLAIN), (*FASTER, PLAIN)),
}
"""Table -> what it holds."""

ROUNDS = {name: section(steps, Table(name, fill, by_row=True)) for name, fill in FILLS.items()}
SECTIONS: Sequence[Section] = (
    *batchcrypt_costs.SECTIONS,
    *(found for name, found in ROUNDS.items() if name.startswith("batchcrypt")),
    *esafl_packing.SECTIONS,
    *(found for name, found in ROUNDS.items() if name.startswith("esafl")),
)

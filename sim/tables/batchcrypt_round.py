"""One iteration of BatchCrypt's evaluation, and so of ESAFL's: nine clients in five data centers.

Everybody is measured in one step a model, whichever paper asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flhe.sim.advise import prices, wan
from flhe.sim.convergence import Projection, project
from flhe.sim.tables import phase_costs as costs_of
from flhe.sim.tables.batchcrypt_paper import (
    BATCHCRYPT,
    COHORT,
    ESAFL,
    FATE,
    MB,
    MODELS,
    PLAIN,
    line,
    rounds,
)
from flhe.sim.tables.dots import dots
from flhe.sim.tables.learned import NAMES as MODEL_NAMES
from flhe.sim.tables.learned import VALUES, batch_s, training_step
from flhe.sim.tables.marked import Marked, projected, published
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.rounds import Round, entries, parts, played, row, scaled
from flhe.sim.tables.section import Found, Plan, Step
from flhe.sim.tables.turns import Cost

LINK = wan.named("batchcrypt")

MODES: Mapping[str, str] = {
    costs_of.PHE: FATE,
    costs_of.PHE_BATCHED: BATCHCRYPT,
    costs_of.BATCHCRYPT_2048: BATCHCRYPT,
    costs_of.BATCHCRYPT: BATCHCRYPT,
    costs_of.ESAFL: ESAFL,
    costs_of.ESAFL_NARROW: ESAFL,
    costs_of.PLAIN: PLAIN,
}
"""Who is measured -> which of the papers' it stands for, and whose epochs it takes."""

QUICK_MODEL = MODELS[0]
AGGREGATION, TRAFFIC = "server's additions", "traffic"
HOURS = ("time", "h")
GIGABYTES = ("traffic", "GB")

SETTING = (
    "Nine clients at the speeds of BatchCrypt's Table 2 (ESAFL's are the same); the slowest counts, "
    "since all wait for it: Hong Kong, 81 Mb/s up and 84 Mb/s down. An iteration is one batch (128 "
    "examples; LSTM: 64). Work is of one thread, on one processor; the papers' clients had 16 "
    "(BatchCrypt), or one desktop (ESAFL). Idle is a client's transfers and its wait for the "
    "server, projected."
)
STAND_INS = (
    "python-paillier, a value a ciphertext, stands for FATE, which computes with it; batched, on "
    "our batches of 16 bits, for BatchCrypt as the paper built it. Keys have 2048 bits, as in the "
    "papers; 'BatchCrypt' without a length is flhe's default of 3072. python-paillier is sampled, "
    "and flhe's BatchCrypt beyond 300,000 values. Adding an upload is a product of ciphertexts for "
    "python-paillier; for flhe it is reading and checking them as well."
)
QUICK = (
    f"A quick run measures {MODEL_NAMES[QUICK_MODEL]}, and takes the other models' encryption, "
    "decryption and bytes for proportional."
)


def notes(plan: Plan, *more: str) -> tuple[str, ...]:
    """Setting and stand-ins, then more; and what a quick run leaves out."""
    return (SETTING, STAND_INS, *more, *((QUICK,) if plan.quick else ()))


def steps(plan: Plan) -> list[Step]:
    """Everybody's costs at each model, in turns, and training."""
    measured = (QUICK_MODEL,) if plan.quick else MODELS
    return [
        *(_step(model, plan) for model in measured),
        *(training_step(model, plan) for model in MODELS),
    ]


def _step(model: str, plan: Plan) -> Step:
    return costs_of.step(VALUES[model], COHORT, tuple(MODES), plan)


def costs(model: str, plan: Plan, found: Found, names: Sequence[str]) -> dict[str, Cost]:
    """Costs of those names at one model."""
    at = QUICK_MODEL if plan.quick else model
    read = costs_of.read(found[_step(at, plan).key])
    return {name: scaled(read[name], VALUES[model] / VALUES[at]) for name in names}


def iterations(
    model: str, plan: Plan, found: Found, names: Sequence[str]
) -> dict[str, tuple[Cost, Round]]:
    """Cost and iteration of those names at one model."""
    train, links = batch_s(model, found, plan), LINK.links(COHORT)
    read = costs(model, plan, found, names)
    return {name: (cost, played(cost, train, links)) for name, cost in read.items()}


def everybodys_mb(cost: Cost) -> Marked:
    """What all nine send and receive in an iteration, MB of 2^20 bytes."""
    return cost.upload_bytes * (2 * COHORT) / MB


def breakdown(plan: Plan, found: Found, names: Sequence[str]) -> list[Entry]:
    """Where an iteration goes, at all models: a client's parts, the whole, and what the server adds."""
    out: list[Entry] = []
    for model in MODELS:
        for name, (cost, seen) in iterations(model, plan, found, names).items():
            numbers = parts(seen) | {AGGREGATION: cost.add_s * COHORT}
            out += entries(row(model), name, cost.group, numbers, "s")
    return out


def traffic(plan: Plan, found: Found, names: Sequence[str]) -> list[Entry]:
    """What an iteration transfers, at all models."""
    return [
        Entry(row(model), name, cost.group, TRAFFIC, "MB", everybodys_mb(cost))
        for model in MODELS
        for name, cost in costs(model, plan, found, names).items()
    ]


def told(
    what: str, unit: str, numbers: Callable[[str], Mapping[str, float]], modes: Sequence[str]
) -> list[Entry]:
    """The paper's numbers of `modes`; `numbers` gives a model's, by mode."""
    return [
        Entry(row(model), mode, "paper", what, unit, published(numbers(model)[mode]))
        for model in MODELS
        for mode in modes
    ]


def to_the_end(
    paper: str, model: str, plan: Plan, found: Found, names: Sequence[str]
) -> dict[str, tuple[Cost, Projection]]:
    """Training to convergence, over the rounds that the paper's table has for whom each stands for."""
    return {
        name: (
            cost,
            project(
                seen.breakdown,
                rounds(paper, model, MODES[name]),
                prices.BATCHCRYPT,
                LINK,
                COHORT,
            ),
        )
        for name, (cost, seen) in iterations(model, plan, found, names).items()
    }


def convergence(
    paper: str, plan: Plan, found: Found, names: Sequence[str], modes: Sequence[str]
) -> list[Entry]:
    """Epochs, hours and all nine clients' GB until convergence: ours, and the paper's of `modes`."""
    out: list[Entry] = []
    for model in MODELS:
        at = row(model)
        for name, (cost, end) in to_the_end(paper, model, plan, found, names).items():
            for (what, unit), value in (
                (HOURS, end.hours),
                (GIGABYTES, end.traffic_gb * COHORT),
            ):
                out.append(Entry(at, name, cost.group, what, unit, projected(value)))
        for mode in modes:
            said = line(paper, model, mode)
            numbers = ((HOURS, said.hours), (GIGABYTES, said.traffic_gb))
            for (what, unit), value in (*numbers, (("epochs", ""), said.epochs)):
                out.append(Entry(at, mode, "paper", what, unit, published(value)))
    return out


def result(
    paper: str,
    where: str,
    title: str,
    out: Sequence[Entry],
    whats: Sequence[str],
    said: tuple[str, ...],
) -> Result:
    """A result whose entries stand together by model, drawn as dots: `whats` are its panels."""
    rows = list(dict.fromkeys(e.row for e in out))
    together = tuple(sorted(out, key=lambda e: rows.index(e.row)))
    name = f"{paper} {where}".lower().replace(" ", "-")
    return Result(name, f"{paper}, {where}", title, together, dots(out, whats, log=True), said)

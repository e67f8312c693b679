"""FLASHE, Figures 7, 8, 10 and 11 and Table 4: a round, its traffic, and training to the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flhe_lab.advise import prices, wan
from flhe_lab.bench import Contender, Setting
from flhe_lab.papers.convergence import Reported, project, reported
from flhe_lab.tables import phase_costs, turns
from flhe_lab.tables.flashe_paper import (
    COHORT,
    GIB,
    MODELS,
    MODES,
    SPARSE_PAILLIER,
    SPARSE_PLAIN,
)
from flhe_lab.tables.headlines import BATCHES, cnn_step
from flhe_lab.tables.learned import NAMES as MODEL_NAMES
from flhe_lab.tables.learned import VALUES, batch_s, training_step
from flhe_lab.tables.marked import Marked, counted, projected, proportional
from flhe_lab.tables.phase_costs import (
    BFV,
    BFV_PAPER,
    CKKS,
    CKKS_PAPER,
    FLASHE,
    FLASHE_TENTH,
    PHE,
    PHE_BATCHED,
    PLAIN,
    WHO,
)
from flhe_lab.tables.result import Group
from flhe_lab.tables.rounds import TOTAL, Round, parts, played, row
from flhe_lab.tables.section import Found, Plan, Say, Section, Step
from flhe_lab.tables.table import Line, Table, section
from flhe_lab.tables.turns import Cost

LINK = wan.named("40mbps")
"""The slowest of the paper's links: a synchronous round waits for it (Sec. 2.3)."""

LARGEST = MODELS[-1]
NAMES = (PLAIN, FLASHE, PHE_BATCHED, BFV_PAPER, BFV, CKKS_PAPER, CKKS)
PLAIN_TENTH, PHE_TENTH = "plain, top 10%", "python-paillier, top 10%"
TENTHS = (PLAIN_TENTH, FLASHE_TENTH, PHE_TENTH)
RATIO = "uplink, to plain with all"
PUBLISHED = {
    "plain, top 10%": SPARSE_PLAIN,
    "FLASHE, top 10%": SPARSE_PLAIN,
    "Pai, top 10%": SPARSE_PAILLIER,
}


# --- a round of the paper's evaluation ---


def training_steps(plan: Plan) -> list[Step]:
    """Seconds of a batch of each model."""
    return [training_step(model, plan) for model in MODELS]


def training(model: str, found: Found, plan: Plan) -> Marked:
    """Seconds that a client trains in an iteration."""
    return batch_s(model, found, plan) * BATCHES


def measured_models(plan: Plan) -> tuple[str, ...]:
    """Models whose costs are measured: in a quick run the largest, which stands for the others."""
    return (LARGEST,) if plan.quick else MODELS


def stands_for(model: str, plan: Plan) -> tuple[str, float]:
    """The model that is measured for this one, and how many times its size this one is."""
    at = model if model in measured_models(plan) else LARGEST
    return at, VALUES[model] / VALUES[at]


def iteration(cost: Cost, train: Marked, down: Marked | None = None) -> Round:
    """One of ten clients at LINK; what comes down is as long as an upload unless told."""
    return played(cost, train, LINK.links(COHORT), None if down is None else down.value)


# --- all values: Figures 7 and 8, Table 4 ---


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
    return {name: read[name].scaled(factor) for name in NAMES}


def _rounds(model: str, plan: Plan, found: Found) -> Iterator[tuple[Cost, Round]]:
    train = training(model, found, plan)
    for cost in costs(model, plan, found).values():
        yield cost, iteration(cost, train)


def _papers(model: str) -> list[tuple[str, Reported]]:
    """Table 4's lines of a model, by the paper's names."""
    name = MODEL_NAMES[model]
    return [(said, reported("FLASHE", name, mode)) for mode, said in MODES.items()]


def _figure_7(plan: Plan, found: Found) -> Iterator[Line]:
    for model in MODELS:
        for cost, seen in _rounds(model, plan, found):
            yield Line(row(model), cost.who, cost.group, parts(seen))
        for said, line in _papers(model):
            yield Line(row(model), said, "paper", {TOTAL: line.hours * 3600 / line.epochs})


def _figure_8(plan: Plan, found: Found) -> Iterator[Line]:
    for model in MODELS:
        for name, cost in costs(model, plan, found).items():
            size = cost.upload_bytes / 1e6
            numbers = {"up": size, "down": size, "traffic": size * 2}
            yield Line(row(model), name, cost.group, numbers)
        for said, line in _papers(model):
            size_mb = line.traffic_gb * GIB / 1e6 / line.epochs
            yield Line(row(model), said, "paper", {"traffic": size_mb})


def _table_4(plan: Plan, found: Found) -> Iterator[Line]:
    for model in MODELS:
        papers = _papers(model)
        for cost, seen in _rounds(model, plan, found):
            end = project(seen.breakdown, papers[0][1].epochs, prices.FLASHE, LINK, COHORT)
            told = {"time": end.hours, "traffic": end.traffic_gb, "price": end.total_usd}
            marked = {what: projected(value) for what, value in told.items()}
            yield Line(row(model), cost.who, cost.group, marked)
        for said, line in papers:
            numbers = {"time": line.hours, "traffic": line.traffic_gb, "price": line.usd}
            yield Line(row(model), said, "paper", numbers)


# --- the largest tenth of each update: Figures 10 and 11 ---


def tenth_steps(plan: Plan) -> list[Step]:
    """Sparse contenders at each model, in turns, and training."""
    return [_tenth_step(model, plan) for model in measured_models(plan)] + training_steps(plan)


def _tenth_step(model: str, plan: Plan) -> Step:
    values = VALUES[model]
    return Step(
        f"flashe-tenth-{values}",
        lambda say: measure_tenth(values, plan.repeats, say),
        f"a tenth of {values:,} values",
        weight=4 + values * plan.repeats / 1e6,
    )


def measure_tenth(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time those that send a tenth; JSON values: rows, and what comes down."""
    from flhe_lab.bench.sparse import sparse
    from flhe_lab.tables.flashe_peers import SHARE, plain_tenth

    setting = Setting(values, COHORT)
    updates = setting.updates()
    (plain, tenth), ours = plain_tenth(setting, updates), sparse(setting, updates, SHARE)
    say(f"{PHE}, making ready")
    contenders: Mapping[str, Contender] = {
        PLAIN_TENTH: plain,
        FLASHE_TENTH: ours,
        PHE: WHO[PHE].make(setting, updates),
    }
    return {
        "rows": turns.timed(contenders, repeats, say),
        "union": tenth.union,
        "sent": tenth.sent,
        "support_bytes": tenth.support_bytes,
        "sum_support_bytes": tenth.sum_support_bytes,
        "sum_bytes": {PLAIN_TENTH: plain.sum_bytes, FLASHE_TENTH: ours.sum_bytes},
    }


def tenth_costs(model: str, plan: Plan, found: Found) -> dict[str, tuple[Cost, Marked]]:
    """Everybody's cost of a tenth, and bytes of the sum that comes down."""
    at, factor = stands_for(model, plan)
    seen = found[_tenth_step(at, plan).key]
    read = turns.costs(seen["rows"], {PHE: "peer"})
    out = {
        name: (read[name].scaled(factor), proportional(counted(size), factor))
        for name, size in seen["sum_bytes"].items()
    }
    sent, union = seen["sent"] / VALUES[at], seen["union"] / VALUES[at]
    whole = read[PHE]
    tenth = Cost(
        PHE_TENTH,
        "peer",
        whole.encrypt_s * sent,
        whole.add_s * sent,
        whole.decrypt_s * union,
        whole.upload_bytes * sent + seen["support_bytes"],
    )
    down = whole.upload_bytes * union + seen["sum_support_bytes"]
    out[PHE_TENTH] = tenth.scaled(factor), proportional(down, factor)
    return out


def _figure_10(plan: Plan, found: Found) -> Iterator[Line]:
    for model in MODELS:
        train = training(model, found, plan)
        for name, (cost, down) in tenth_costs(model, plan, found).items():
            yield Line(row(model), name, cost.group, parts(iteration(cost, train, down)))


def _figure_11(plan: Plan, found: Found) -> Iterator[Line]:
    for model in MODELS:
        values, dense = VALUES[model], counted(4 * VALUES[model])
        sizes: list[tuple[str, Group, Marked]] = [(PLAIN, "ours", dense)]
        for cost, _ in tenth_costs(model, plan, found).values():
            sizes.append((cost.who, cost.group, cost.upload_bytes))
        for who, group, size in sizes:
            each = {"uplink": size / 1e6, "uplink a value of the model": size / values}
            yield Line(row(model), who, group, {**each, RATIO: size / dense})
        for who, ratio in PUBLISHED.items():
            yield Line(row(model), who, "paper", {RATIO: ratio})


SECTIONS: Sequence[Section] = (
    section(steps, Table("flashe-figure-7", _figure_7)),
    section(steps, Table("flashe-figure-8", _figure_8)),
    section(steps, Table("flashe-table-4", _table_4)),
    section(tenth_steps, Table("flashe-figure-10", _figure_10)),
    section(tenth_steps, Table("flashe-figure-11", _figure_11)),
)

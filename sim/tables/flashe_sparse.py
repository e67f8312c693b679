"""FLASHE, Figures 10 and 11: a round in which each client sends the largest tenth of its update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flhe.sim.bench import Contender, Setting
from flhe.sim.tables import turns
from flhe.sim.tables.dots import dots
from flhe.sim.tables.flashe_paper import COHORT, MODELS, SPARSE_PAILLIER, SPARSE_PLAIN
from flhe.sim.tables.flashe_round import (
    QUICK,
    SETTING,
    iteration,
    measured_models,
    stands_for,
    training,
    training_steps,
)
from flhe.sim.tables.learned import VALUES
from flhe.sim.tables.marked import Marked, counted, published
from flhe.sim.tables.phase_costs import FLASHE_TENTH, PHE, PLAIN, WHO
from flhe.sim.tables.result import Entry, Group, Result, ratios
from flhe.sim.tables.rounds import PARTS, TOTAL, entries, parts, proportional, row, scaled
from flhe.sim.tables.section import Found, Plan, Say, Section, Step
from flhe.sim.tables.turns import Cost

PLAIN_TENTH, PHE_TENTH = "plain, top 10%", "python-paillier, top 10%"
NAMES = (PLAIN_TENTH, FLASHE_TENTH, PHE_TENTH)
UP, VALUE_BYTES, RATIO = "uplink", "uplink a value of the model", "uplink, to plain with all"
PUBLISHED = {
    "plain, top 10%": SPARSE_PLAIN,
    "FLASHE, top 10%": SPARSE_PLAIN,
    "Pai, top 10%": SPARSE_PAILLIER,
}

SPARSE = (
    "Who sends a tenth says which: a coded support, 0.48 bits a coordinate. FLASHE's encryption "
    "and plain's hold the choice of the largest; python-paillier's, a value each, does not, and "
    "its sum has as many values as somebody sent: of ten independent clients 65% of all. "
    "Clients that learn alike send fewer."
)
PAPER = (
    "Figures 10 and 11 are pictures without numbers. In its text (Sec. 6.4) plain falls to a "
    "fifth of the dense uplink, which at the paper's 20 bits a value leaves 2 bits a coordinate "
    "for saying which are sent; Paillier grows to 20 times. FLASHE being as plain, that is a "
    "factor of 100 between them, where the paper tells 48, and 16 to 63 in time, or 13 to 63 "
    "(Sec. 1)."
)


def steps(plan: Plan) -> list[Step]:
    """Sparse contenders at each model, in turns, and training."""
    return [_step(model, plan) for model in measured_models(plan)] + training_steps(plan)


def _step(model: str, plan: Plan) -> Step:
    values = VALUES[model]
    return Step(
        f"flashe-tenth-{values}",
        lambda say: measure(values, plan.repeats, say),
        f"a tenth of {values:,} values",
        weight=4 + values * plan.repeats / 1e6,
    )


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time those that send a tenth; JSON values: rows, and what comes down."""
    from flhe.sim.bench.sparse import sparse
    from flhe.sim.tables.flashe_peers import SHARE, plain_tenth

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


def costs(model: str, plan: Plan, found: Found) -> dict[str, tuple[Cost, Marked]]:
    """Everybody's cost of a tenth, and bytes of the sum that comes down."""
    at, factor = stands_for(model, plan)
    seen = found[_step(at, plan).key]
    read = turns.costs(seen["rows"], {PHE: "peer"})
    out = {
        name: (scaled(read[name], factor), proportional(counted(size), factor))
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
    out[PHE_TENTH] = scaled(tenth, factor), proportional(down, factor)
    return out


def report_10(plan: Plan, found: Found) -> list[Result]:
    """Where an iteration goes."""
    out: list[Entry] = []
    for model in MODELS:
        train = training(model, found, plan)
        for name, (cost, down) in costs(model, plan, found).items():
            seen = iteration(cost, train, down)
            out += entries(row(model), name, cost.group, parts(seen), "s")
    out += ratios(out, TOTAL, FLASHE_TENTH)
    notes = (SETTING, SPARSE, PAPER, *((QUICK,) if plan.quick else ()))
    chart = dots(out, (*PARTS[1:], TOTAL), log=True)
    title = "time of one iteration with a tenth of the values"
    return [Result("flashe-figure-10", "FLASHE, Figure 10", title, tuple(out), chart, notes)]


def report_11(plan: Plan, found: Found) -> list[Result]:
    """What goes up."""
    out: list[Entry] = []
    for model in MODELS:
        values, dense = VALUES[model], counted(4 * VALUES[model])
        sizes: list[tuple[str, Group, Marked]] = [(PLAIN, "ours", dense)]
        for cost, _ in costs(model, plan, found).values():
            sizes.append((cost.who, cost.group, cost.upload_bytes))
        for who, group, size in sizes:
            out.append(Entry(row(model), who, group, UP, "MB", size / 1e6))
            out.append(Entry(row(model), who, group, VALUE_BYTES, "bytes", size / values))
            out.append(Entry(row(model), who, group, RATIO, "x", size / dense))
        for who, ratio in PUBLISHED.items():
            out.append(Entry(row(model), who, "paper", RATIO, "x", published(ratio)))
    notes = (
        "Plain with all values is float32. MB are of 10^6 bytes.",
        SPARSE,
        PAPER,
        *((QUICK,) if plan.quick else ()),
    )
    chart = dots(out, (UP, RATIO), log=True)
    title = "uplink of one iteration with a tenth of the values"
    return [Result("flashe-figure-11", "FLASHE, Figure 11", title, tuple(out), chart, notes)]


SECTIONS: Sequence[Section] = (
    Section("flashe-figure-10", "FLASHE", steps, report_10, ("Figure 10",)),
    Section("flashe-figure-11", "FLASHE", steps, report_11, ("Figure 11",)),
)

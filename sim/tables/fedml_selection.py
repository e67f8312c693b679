"""FedML-HE's Tables 7 and 8: by the share that is encrypted, and by framework.

Both come of `fedml_measure`'s turns; what is said of selective encryption is of one run each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flhe.sim.bench.fedml_models import CNN, TABLE_7, VIT
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.fedml_measure import (
    FLARE,
    OURS,
    PLAIN,
    TENSEAL,
    Aggregation,
    ours,
    read,
    step,
    tenseals,
)
from flhe.sim.tables.fedml_models_table import (
    PAPER,
    SETTING,
    SIZE,
    TIME,
    costs_of,
    model_step,
    numbers,
    sampled_note,
    told,
)
from flhe.sim.tables.fedml_published import TABLE_8
from flhe.sim.tables.marked import Marked, published
from flhe.sim.tables.result import Entry, Group, Result
from flhe.sim.tables.section import Found, Plan, Section, Step

SHARES_7 = tuple(selection.ratio for selection in TABLE_7)


def share_step(plan: Plan) -> Step:
    """The turns of the Vision Transformer, for every share of Table 7."""
    return step(VIT.values, SHARES_7, plan)


@dataclass(frozen=True, slots=True)
class Selective:
    """How many times a tenth fits into all, of one run.

    Parameters
    ----------
    whole_s, whole_bytes : Marked
        With what travels in clear.
    beyond_s, beyond_bytes : Marked
        Beyond what is in clear: less the cost of p = 0 on both sides.
    """

    whole_s: Marked
    whole_bytes: Marked
    beyond_s: Marked
    beyond_bytes: Marked


def selective(none: Aggregation, tenth: Aggregation, everything: Aggregation) -> Selective:
    """The four ratios out of p = 0, 0.1 and 1."""
    more_s = everything.total_s - none.total_s
    more_bytes = everything.upload_bytes - none.upload_bytes
    return Selective(
        everything.total_s / tenth.total_s,
        everything.upload_bytes / tenth.upload_bytes,
        more_s / (tenth.total_s - none.total_s),
        more_bytes / (tenth.upload_bytes - none.upload_bytes),
    )


SHORT = {CNN: "CNN", VIT: "ViT"}


def selective_of(plan: Plan, found: Found) -> dict[tuple[str, str], Selective]:
    """(model, who) -> ratios: of the CNN, and of the Vision Transformer; ours, and TenSEAL's."""
    cnn = costs_of(CNN, plan, found)
    vit = read(found[share_step(plan).key], VIT.values)
    out = {}
    for model, costs in ((CNN, cnn), (VIT, vit)):
        out[SHORT[model], OURS] = selective(costs[ours(0)], costs[ours(0.1)], costs[OURS])
        theirs = (costs[PLAIN], costs[tenseals(0.1)], costs[TENSEAL])
        out[SHORT[model], TENSEAL] = selective(*theirs)
    return out


def _share_steps(plan: Plan) -> list[Step]:
    return [model_step(CNN, plan), share_step(plan)]


def _table_7(plan: Plan, found: Found) -> list[Result]:
    costs = read(found[share_step(plan).key], VIT.values)
    entries: list[Entry] = []
    for selection in TABLE_7:
        row, x = f"{selection.ratio:.0%}", 100 * selection.ratio
        theirs = tenseals(selection.ratio) if selection.ratio else PLAIN
        for who, name in ((OURS, ours(selection.ratio)), (TENSEAL, theirs)):
            group: Group = "ours" if who == OURS else "peer"
            entries += [replace(e, who=who, group=group) for e in numbers(row, costs[name], x)]
        entries += told(row, PAPER, selection.seconds, selection.nbytes, x)
    notes = (
        SETTING,
        sampled_note(plan),
        f"The Vision Transformer, {VIT.values:,} values. At 0%, ours encrypts one value and the counts "
        "and packs the rest as integers; TenSEAL's is float32 in clear.",
    )
    chart = Chart("lines", (TIME, SIZE), log=True, xlabel="encrypted, %")
    table = Result(
        "fedml-table-7", "FedML-HE, Table 7", "by the share that is encrypted",
        tuple(entries), chart, notes,
    )  # fmt: skip
    return [table, _selection(plan, found)]


def _selection(plan: Plan, found: Found) -> Result:
    entries: list[Entry] = []

    def add(model: str, who: str, group: Group, s: Selective) -> None:
        both = (("all of it", s.whole_s, s.whole_bytes), ("beyond", s.beyond_s, s.beyond_bytes))
        for what, seconds, nbytes in both:
            row = f"{model}, {what}"
            entries.append(Entry(row, who, group, "time", "x", seconds))
            entries.append(Entry(row, who, group, "bytes", "x", nbytes))

    for (model, who), ratio in selective_of(plan, found).items():
        add(model, who, "ours" if who == OURS else "peer", ratio)
    add(SHORT[VIT], PAPER, "paper", selective(*(_published(at) for at in (0, 1, -1))))
    notes = (
        SETTING,
        sampled_note(plan),
        "How many times a tenth fits into all, each of one run. All of it counts what travels in "
        "clear as well; beyond the clear part, what p = 0 costs is taken off on both sides.",
    )
    chart = Chart("bars", ("time", "bytes"))
    return Result(
        "fedml-selective", "FedML-HE, Sec. 4.2.1", "what encrypting a tenth takes off",
        tuple(entries), chart, notes,
    )  # fmt: skip


def _published(at: int) -> Aggregation:
    """A row of Table 7, as one: it tells no phases."""
    selection, none = TABLE_7[at], published(0.0)
    size = published(selection.nbytes)
    return Aggregation(PAPER, "paper", published(selection.seconds), none, none, size, size)


# --- Table 8 ---

FRAMEWORKS = ("ours", "ours 10%", "TenSEAL", "FLARE", "IBMFL", "plain")
"""TABLE_8's rows as ours are called."""

HERE = {
    "plain": PLAIN,
    "ours": OURS,
    "ours 10%": ours(0.1),
    "TenSEAL": TENSEAL,
    "TenSEAL 10%": tenseals(0.1),
    "FLARE": FLARE,
}


def _table_8(plan: Plan, found: Found) -> list[Result]:
    costs = costs_of(CNN, plan, found)
    published_of = dict(zip(FRAMEWORKS, TABLE_8, strict=True))
    entries: list[Entry] = []
    for row, who in HERE.items():
        group = costs[who].group
        here = "here" if group == "ours" else "here, TenSEAL"
        entries += [replace(e, who=here) for e in numbers(row, costs[who])]
        if row in published_of:
            entries += told(row, "FedML-HE", published_of[row].seconds, published_of[row].nbytes)
    ibm = published_of["IBMFL"]
    entries += told("IBMFL", "FedML-HE", ibm.seconds, ibm.nbytes)
    notes = (
        SETTING,
        sampled_note(plan),
        f"The CNN, {CNN.values:,} values. FLARE and IBMFL themselves were not run: FLARE here is "
        "TenSEAL with clients that weigh, as FLARE does it; IBMFL's are published only. 'ours' of the "
        "paper is its own; how its optimized line is encrypted it does not say: its bytes are those of "
        "a tenth.",
        "The paper has 105.72 MB here and 103.15 in Tables 4 and 6 for the same model and parameters, "
        "of which Table 4's ratio of 16.66 follows from the former; and 2.456 s here and in Table 4, "
        "1.926 in Table 6.",
    )
    chart = Chart("bars", (TIME, SIZE), log=True)
    return [
        Result(
            "fedml-table-8", "FedML-HE, Table 8", "frameworks, the CNN",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


TABLES_7_8 = (
    Section("fedml-table-7", "FedML-HE", _share_steps, _table_7, ("Table 7", "Sec. 4.2.1")),
    Section("fedml-table-8", "FedML-HE", lambda p: [model_step(CNN, p)], _table_8, ("Table 8",)),
)

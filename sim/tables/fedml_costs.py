"""FedML-HE's Tables 4 to 8, and its Figures 2 and 7: what an aggregation costs.

All but Table 6 come of `fedml_measure`'s turns; what is said of selective encryption is of one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flhe_lab.bench.fedml_models import CNN, MB, RESNET_18, TABLE_7, VIT, Model
from flhe_lab.tables.fedml_measure import (
    FLARE,
    OURS,
    PLAIN,
    SHARES,
    TENSEAL,
    Aggregation,
    longest,
    ours,
    read,
    reduced_step,
    step,
    tenseals,
)
from flhe_lab.tables.fedml_parameter_table import TABLE_6_SECTION
from flhe_lab.tables.fedml_published import (
    MODELS,
    TABLE_5,
    TABLE_8,
    TOP_K,
    Efficient,
)
from flhe_lab.tables.marked import Marked, published
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.table import Fill, Line, Table, section

PAPER = "FedML-HE (PALISADE)"
TIME, SIZE = "aggregation", "upload"
"""Quantities: the three phases one after the other, as in the paper; one client's bytes."""


def sampled(plan: Plan, _found: Found) -> dict[str, object]:
    """What the note on samples names: values of the longest vector that is run whole."""
    return {"longest": longest(plan)}


def model_step(model: Model, plan: Plan) -> Step:
    """The turns that tell what a model costs."""
    return step(model.values, SHARES, plan)


def costs_of(model: Model, plan: Plan, found: Found) -> dict[str, Aggregation]:
    """What a model costs, by name."""
    return read(found[model_step(model, plan).key], model.values)


def row_of(model: Model) -> str:
    """A model as tables call it."""
    return f"{model.name} ({model.values:,})"


def numbers(cost: Aggregation) -> dict[str, Marked]:
    """Total seconds and MB of one aggregation."""
    return {TIME: cost.total_s, SIZE: cost.upload_bytes / MB}


def told(seconds: float, nbytes: float) -> dict[str, float]:
    """The same as the paper says."""
    return {TIME: seconds, SIZE: nbytes / MB}


# --- Table 4, Figures 2 and 7: by the size of the model ---


def model_steps(plan: Plan) -> list[Step]:
    """Turns of all models, those beyond the longest once."""
    return list({s.key: s for s in (model_step(model, plan) for model in MODELS)}.values())


def _models(who: Sequence[str], *, papers: bool) -> Fill:
    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        for model in MODELS:
            costs, row, x = costs_of(model, plan, found), row_of(model), model.values
            for cost in (costs[each] for each in who):
                yield Line(row, cost.who, cost.group, numbers(cost), x)
            if papers:
                yield Line(row, PLAIN, "paper", told(model.plain_s, model.plain_bytes), x)
                yield Line(row, PAPER, "paper", told(model.he_s, model.he_bytes), x)

    return fill


WHOLE = (PLAIN, OURS, TENSEAL, FLARE)
PARTS = (PLAIN, *map(ours, (0.1, 0.5, 1.0)), *map(tenseals, (0.1, 0.5, 1.0)))

# --- Table 5: fewer values travel, all of those encrypted ---


def _fewer_steps(plan: Plan) -> list[Step]:
    made = [reduced_step(RESNET_18.values, TOP_K, plan)]
    made += [step(row.model.values, SHARES, plan) for row in TABLE_5]
    made += [step(row.values, SHARES, plan) for row in TABLE_5[1:]]
    return list({one.key: one for one in made}.values())


def _fewer(row: Efficient, plan: Plan, found: Found) -> dict[str, Aggregation]:
    if row.model is RESNET_18:
        return read(found[reduced_step(row.model.values, TOP_K, plan).key], row.model.values)
    return read(found[step(row.values, SHARES, plan).key], row.values)


def _table_5(plan: Plan, found: Found) -> Iterator[Line]:
    whole_of, fewer_of = "{}, all values", "{}, fewer"
    for row in TABLE_5:
        whole, fewer = costs_of(row.model, plan, found), _fewer(row, plan, found)
        at = row_of(row.model)
        for who, everything, some in (
            ("in clear", whole[PLAIN], None),
            ("FedML-HE", whole[OURS], fewer[OURS]),
            ("TenSEAL, server weighs", whole[TENSEAL], fewer[TENSEAL]),
        ):
            both = {whole_of: numbers(everything), fewer_of: numbers(some) if some else {}}
            for what in (SIZE, TIME):
                each = {name.format(what): found.get(what) for name, found in both.items()}
                yield Line(at, who, everything.group, each)
        size, fewer_size = whole_of.format(SIZE), fewer_of.format(SIZE)
        yield Line(at, "in clear", "paper", {size: row.model.plain_bytes / MB})
        yield Line(
            at, "PALISADE", "paper", {size: row.model.he_bytes / MB, fewer_size: row.nbytes / MB}
        )


# --- Table 7 and Section 4.2.1: by the share that is encrypted ---

SHARES_7 = tuple(selection.ratio for selection in TABLE_7)
SHORT = {CNN: "CNN", VIT: "ViT"}


def share_step(plan: Plan) -> Step:
    """The turns of the Vision Transformer, for every share of Table 7."""
    return step(VIT.values, SHARES_7, plan)


def _table_7(plan: Plan, found: Found) -> Iterator[Line]:
    costs = read(found[share_step(plan).key], VIT.values)
    for selection in TABLE_7:
        row, x = f"{selection.ratio:.0%}", 100 * selection.ratio
        theirs = tenseals(selection.ratio) if selection.ratio else PLAIN
        yield Line(row, OURS, "ours", numbers(costs[ours(selection.ratio)]), x)
        yield Line(row, TENSEAL, "peer", numbers(costs[theirs]), x)
        yield Line(row, PAPER, "paper", told(selection.seconds, selection.nbytes), x)


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


def _selection(plan: Plan, found: Found) -> Iterator[Line]:
    found_here: list[tuple[str, str, Group, Selective]] = [
        (model, who, "ours" if who == OURS else "peer", ratio)
        for (model, who), ratio in selective_of(plan, found).items()
    ]
    papers = selective(*(_published(at) for at in (0, 1, -1)))
    for model, who, group, s in (*found_here, (SHORT[VIT], PAPER, "paper", papers)):
        yield Line(f"{model}, all of it", who, group, {"time": s.whole_s, "bytes": s.whole_bytes})
        yield Line(f"{model}, beyond", who, group, {"time": s.beyond_s, "bytes": s.beyond_bytes})


def _published(at: int) -> Aggregation:
    """A row of Table 7, as one: it tells no phases."""
    selection, none = TABLE_7[at], published(0.0)
    size = published(selection.nbytes)
    return Aggregation(PAPER, "paper", published(selection.seconds), none, none, size, size)


# --- Table 8: by framework ---

FRAMEWORKS = dict(
    zip(("ours", "ours 10%", "TenSEAL", "FLARE", "IBMFL", "plain"), TABLE_8, strict=True)
)
"""TABLE_8's rows as ours are called."""

HERE = {
    "plain": PLAIN,
    "ours": OURS,
    "ours 10%": ours(0.1),
    "TenSEAL": TENSEAL,
    "TenSEAL 10%": tenseals(0.1),
    "FLARE": FLARE,
}


def _table_8(plan: Plan, found: Found) -> Iterator[Line]:
    costs = costs_of(CNN, plan, found)
    for row in (*HERE, "IBMFL"):
        if row in HERE:
            cost = costs[HERE[row]]
            here = "here" if cost.group == "ours" else "here, TenSEAL"
            yield Line(row, here, cost.group, numbers(cost))
        if row in FRAMEWORKS:
            theirs = FRAMEWORKS[row]
            yield Line(row, "FedML-HE", "paper", told(theirs.seconds, theirs.nbytes))


FEWER = section(_fewer_steps, Table("fedml-table-5", _table_5, sampled))
SECTIONS: Sequence[Section] = (
    section(
        model_steps,
        Table("fedml-table-4", _models(WHOLE, papers=True), sampled),
        Table("fedml-figure-2", _models(WHOLE, papers=True), sampled),
        Table("fedml-figure-7", _models(PARTS, papers=False), sampled),
    ),
    TABLE_6_SECTION,
    section(
        lambda plan: [model_step(CNN, plan), share_step(plan)],
        Table("fedml-table-7", _table_7, sampled),
        Table("fedml-selective", _selection, sampled),
    ),
    section(lambda plan: [model_step(CNN, plan)], Table("fedml-table-8", _table_8, sampled)),
)

"""FedML-HE's Tables 4 to 8, and its Figures 2 and 7: what an aggregation costs.

All but Table 6 come of `fedml_measure`'s turns; what is said of selective encryption is of one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flhe_lab.tables.fedml_measure import (
    FLARE,
    OURS,
    PLAIN,
    SHARES,
    TENSEAL,
    costs,
    longest,
    ours,
    reduced_costs,
    reduced_step,
    step,
    tenseals,
    total_s,
)
from flhe_lab.tables.fedml_parameters import TABLE_6_SECTION
from flhe_lab.tables.fedml_published import (
    BERT,
    CNN,
    MB,
    MODELS,
    RESNET_18,
    TABLE_5,
    TABLE_7,
    TABLE_8,
    VIT,
    Model,
)
from flhe_lab.tables.marked import Marked, published
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.table import Fill, Line, Table, section

PAPER = "FedML-HE (PALISADE)"
TIME, SIZE = "aggregation", "upload"
"""Quantities: the three phases one after the other, as in the paper; one client's bytes."""


def sampled(plan: Plan, _found: Found) -> dict[str, object]:
    """What the note on samples names: values of the longest vector that is run whole."""
    return {"longest": longest(plan)}


def _steps(models: Iterable[Model], plan: Plan) -> list[Step]:
    """The turns that tell what models cost; of those beyond the longest once."""
    made = (step(model.values, SHARES, plan) for model in models)
    return list({one.key: one for one in made}.values())


def row_of(model: Model) -> str:
    """A model as tables call it."""
    return f"{model.name} ({model.values:,})"


def numbers(cost: Cost) -> dict[str, Marked]:
    """Total seconds and MB of one aggregation."""
    return {TIME: total_s(cost), SIZE: cost.upload_bytes / MB}


def told(seconds: float, nbytes: float) -> dict[str, float]:
    """The same as the paper says."""
    return {TIME: seconds, SIZE: nbytes / MB}


# --- Table 4, Figures 2 and 7: by the size of the model ---


def _models(who: Sequence[str], *, papers: bool) -> Fill:
    def fill(plan: Plan, found: Found) -> Iterator[Line]:
        for model in MODELS:
            seen, row, x = costs(model.values, SHARES, plan, found), row_of(model), model.values
            for cost in (seen[each] for each in who):
                yield Line(row, cost.who, cost.group, numbers(cost), x)
            if papers:
                yield Line(row, PLAIN, "paper", told(model.plain_s, model.plain_bytes), x)
                yield Line(row, PAPER, "paper", told(model.he_s, model.he_bytes), x)

    return fill


WHOLE = (PLAIN, OURS, TENSEAL, FLARE)
PARTS = (PLAIN, *map(ours, (0.1, 0.5, 1.0)), *map(tenseals, (0.1, 0.5, 1.0)))

# --- Table 5: fewer values travel, all of those encrypted ---


def _fewer_steps(plan: Plan) -> list[Step]:
    few = [reduced_step(RESNET_18.values, plan), step(TABLE_5[BERT].values, SHARES, plan)]
    return [*few, *_steps(TABLE_5, plan)]


def _table_5(plan: Plan, found: Found) -> Iterator[Line]:
    for model, paper in TABLE_5.items():
        whole, at = costs(model.values, SHARES, plan, found), row_of(model)
        if model is RESNET_18:
            fewer = reduced_costs(model.values, plan, found)
        else:
            fewer = costs(paper.values, SHARES, plan, found)
        for who, name in (
            ("in clear", PLAIN),
            ("FedML-HE", OURS),
            ("TenSEAL, server weighs", TENSEAL),
        ):
            some = {} if name == PLAIN else numbers(fewer[name])
            for what in (SIZE, TIME):
                each = {
                    f"{what}, all values": numbers(whole[name])[what],
                    f"{what}, fewer": some.get(what),
                }
                yield Line(at, who, whole[name].group, each)
        all_values = f"{SIZE}, all values"
        yield Line(at, "in clear", "paper", {all_values: model.plain_bytes / MB})
        sizes = {all_values: model.he_bytes / MB, f"{SIZE}, fewer": paper.nbytes / MB}
        yield Line(at, "PALISADE", "paper", sizes)


# --- Table 7 and Section 4.2.1: by the share that is encrypted ---

Quantities = Mapping[str, Marked]
SHORT = {CNN: "CNN", VIT: "ViT"}


def _table_7(plan: Plan, found: Found) -> Iterator[Line]:
    seen = costs(VIT.values, [*TABLE_7], plan, found)
    for share, paper in TABLE_7.items():
        row, x = f"{share:.0%}", 100 * share
        theirs = tenseals(share) if share else PLAIN
        yield Line(row, OURS, "ours", numbers(seen[ours(share)]), x)
        yield Line(row, TENSEAL, "peer", numbers(seen[theirs]), x)
        yield Line(row, PAPER, "paper", told(paper.seconds, paper.nbytes), x)


def selective(
    none: Quantities, tenth: Quantities, everything: Quantities
) -> Mapping[str, Quantities]:
    """How many times a tenth fits into all, of one run: whole, and beyond what is in clear (p = 0)."""
    ratios: dict[str, dict[str, Marked]] = {"all of it": {}, "beyond": {}}
    for what, quantity in ((TIME, "time"), (SIZE, "bytes")):
        least, some, most = (each[what] for each in (none, tenth, everything))
        ratios["all of it"][quantity] = most / some
        ratios["beyond"][quantity] = (most - least) / (some - least)
    return ratios


def _selection(plan: Plan, found: Found) -> Iterator[Line]:
    told_of: dict[tuple[str, str, Group], Sequence[Quantities]] = {}
    for model, shares in ((CNN, SHARES), (VIT, [*TABLE_7])):
        seen = costs(model.values, shares, plan, found)
        mine, theirs = (ours(0), ours(0.1), OURS), (PLAIN, tenseals(0.1), TENSEAL)
        told_of[SHORT[model], OURS, "ours"] = [numbers(seen[name]) for name in mine]
        told_of[SHORT[model], TENSEAL, "peer"] = [numbers(seen[name]) for name in theirs]
    papers = (told(TABLE_7[p].seconds, TABLE_7[p].nbytes) for p in (0.0, 0.1, 1.0))
    told_of[SHORT[VIT], PAPER, "paper"] = [
        {what: published(n) for what, n in each.items()} for each in papers
    ]
    for (name, who, group), three in told_of.items():
        for how, ratios in selective(*three).items():
            yield Line(f"{name}, {how}", who, group, ratios)


# --- Table 8: by framework ---

HERE = {
    "plain": PLAIN,
    "ours": OURS,
    "ours 10%": ours(0.1),
    "TenSEAL": TENSEAL,
    "TenSEAL 10%": tenseals(0.1),
    "FLARE": FLARE,
}


def _table_8(plan: Plan, found: Found) -> Iterator[Line]:
    seen = costs(CNN.values, SHARES, plan, found)
    for row in (*HERE, "IBMFL"):
        if row in HERE:
            cost = seen[HERE[row]]
            here = "here" if cost.group == "ours" else "here, TenSEAL"
            yield Line(row, here, cost.group, numbers(cost))
        if row in TABLE_8:
            theirs = TABLE_8[row]
            yield Line(row, "FedML-HE", "paper", told(theirs.seconds, theirs.nbytes))


FEWER = section(_fewer_steps, Table("fedml-table-5", _table_5, sampled))
SECTIONS: Sequence[Section] = (
    section(
        lambda plan: _steps(MODELS, plan),
        Table("fedml-table-4", _models(WHOLE, papers=True), sampled),
        Table("fedml-figure-2", _models(WHOLE, papers=True), sampled),
        Table("fedml-figure-7", _models(PARTS, papers=False), sampled),
    ),
    TABLE_6_SECTION,
    section(
        lambda plan: [*_steps([CNN], plan), step(VIT.values, [*TABLE_7], plan)],
        Table("fedml-table-7", _table_7, sampled),
        Table("fedml-selective", _selection, sampled),
    ),
    section(lambda plan: _steps([CNN], plan), Table("fedml-table-8", _table_8, sampled)),
)

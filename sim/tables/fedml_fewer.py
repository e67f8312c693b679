"""FedML-HE's Table 5: models of which fewer values travel, all of those encrypted."""

from __future__ import annotations

from flhe.sim.bench.fedml_models import MB, RESNET_18
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.fedml_measure import (
    OURS,
    PLAIN,
    SHARES,
    TENSEAL,
    Aggregation,
    read,
    reduced_step,
    step,
)
from flhe.sim.tables.fedml_models_table import SIZE, TIME, row_of, sampled_note
from flhe.sim.tables.fedml_published import TABLE_5 as PUBLISHED
from flhe.sim.tables.fedml_published import TOP_K, Efficient
from flhe.sim.tables.marked import published
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.section import Found, Plan, Section, Step


def _table_5_steps(plan: Plan) -> list[Step]:
    made = [reduced_step(RESNET_18.values, TOP_K, plan)]
    made += [step(row.model.values, SHARES, plan) for row in PUBLISHED]
    made += [step(row.values, SHARES, plan) for row in PUBLISHED[1:]]
    return list({one.key: one for one in made}.values())


def _fewer(row: Efficient, plan: Plan, found: Found) -> dict[str, Aggregation]:
    if row.model is RESNET_18:
        return read(found[reduced_step(row.model.values, TOP_K, plan).key], row.model.values)
    return read(found[step(row.values, SHARES, plan).key], row.values)


def _table_5(plan: Plan, found: Found) -> list[Result]:
    entries: list[Entry] = []
    for row in PUBLISHED:
        whole = read(found[step(row.model.values, SHARES, plan).key], row.model.values)
        fewer, named_row = _fewer(row, plan, found), row_of(row.model)
        for who, costs in (
            ("in clear", (whole[PLAIN], None)),
            ("FedML-HE", (whole[OURS], fewer[OURS])),
            ("TenSEAL, server weighs", (whole[TENSEAL], fewer[TENSEAL])),
        ):
            everything, some = costs
            both = ((f"{SIZE}, all values", everything), (f"{SIZE}, fewer", some))
            for what, cost in both:
                if cost is not None:
                    size = cost.upload_bytes / MB
                    entries.append(Entry(named_row, who, cost.group, what, "MB", size))
            for what, cost in ((f"{TIME}, all values", everything), (f"{TIME}, fewer", some)):
                if cost is not None:
                    entries.append(Entry(named_row, who, cost.group, what, "s", cost.total_s))
        told = (
            ("in clear", f"{SIZE}, all values", row.model.plain_bytes),
            ("PALISADE", f"{SIZE}, all values", row.model.he_bytes),
            ("PALISADE", f"{SIZE}, fewer", row.nbytes),
        )
        for who, what, nbytes in told:
            entries.append(Entry(named_row, who, "paper", what, "MB", published(nbytes / MB)))
    notes = (
        f"ResNet-18: {TOP_K:,} values at coordinates that the group has agreed, all encrypted, the "
        f"rest remembered. BERT: {PUBLISHED[1].values:,} values, LoRA of rank 8 on query and value "
        "matrices, as that method's paper has it; FedML-HE's tells no number. MB of 2^20 bytes.",
        sampled_note(plan),
        "The paper's 19.03 MB does not follow from its parameters: a million values are 245 "
        "ciphertexts of 256 KB, 61 MB, or 3.8 MB in clear. Its reductions of 0.60 and 0.96 are of "
        "plain bytes; of ciphertexts they would be 0.98 and 0.998.",
    )
    chart = Chart("bars", (f"{SIZE}, all values", f"{SIZE}, fewer"), log=True)
    return [
        Result(
            "fedml-table-5", "FedML-HE, Table 5", "fewer values, all of them encrypted",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


TABLE_5 = Section("fedml-table-5", "FedML-HE", _table_5_steps, _table_5, ("Table 5",))

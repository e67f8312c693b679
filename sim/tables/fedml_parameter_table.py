"""FedML-HE's Table 6 as a section: `fedml_parameters`' measurements beside the paper's."""

from __future__ import annotations

from typing import Any

from flhe.sim.bench.fedml_models import CNN, MB
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.fedml_parameters import BUDGET, PAPERS_RING, accuracy, cost_of_setups, name
from flhe.sim.tables.fedml_published import BATCHES, SCALES
from flhe.sim.tables.fedml_published import TABLE_6 as PUBLISHED
from flhe.sim.tables.marked import Marked, measured, published
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.section import Found, Plan, Section, Step


def _cost_step(plan: Plan) -> Step:
    values = 4 * BATCHES[-1] * (1 if plan.quick else 4)
    return Step(
        f"fedml-parameters-{values}" + ("-quick" if plan.quick else ""),
        lambda say: cost_of_setups(values, 1 if plan.quick else 3, say),
        "CKKS by batch and scale",
        weight=8.0 if plan.quick else 60.0,
    )


def _accuracy_step(plan: Plan) -> Step:
    rounds = 3 if plan.quick else 8
    rings = (4096,) if plan.quick else tuple(BUDGET)
    scales = (14, 52) if plan.quick else SCALES
    return Step(
        f"fedml-accuracy-{rounds}-{len(rings)}-{len(scales)}",
        lambda say: accuracy(rings, scales, rounds, say, 150 if plan.quick else 0),
        "learning digits through CKKS",
        weight=10.0 if plan.quick else 90.0,
    )


def _steps(plan: Plan) -> list[Step]:
    return [_cost_step(plan), _accuracy_step(plan)]


def _who(cost: dict[str, Any]) -> str:
    weighed = ", server weighs" if cost["weighs"] else ""
    return f"n = {cost['ring']}, {cost['slots']} values{weighed}"


def _report(plan: Plan, found: Found) -> list[Result]:
    costs = found[_cost_step(plan).key]
    learned = found[_accuracy_step(plan).key]
    changes = {
        (each["ring"], each["scale"]): 100 * (each["best"] - learned["clear"])
        for each in learned["encrypted"]
    }
    entries: list[Entry] = []
    for paper in sorted(PUBLISHED, key=lambda paper: paper.scale):
        row, x = f"{paper.scale} bits", float(paper.scale)
        for cost in costs:
            if (cost["slots"], cost["scale"]) == (paper.batch, paper.scale) and "values" in cost:
                entries += _measured(row, cost, x)
                change = changes.get((cost["ring"], cost["scale"]))
                if change is not None and not cost["weighs"]:
                    here = measured(change)
                    entries.append(
                        Entry(row, _who(cost), "peer", "test accuracy", "points", here, x)
                    )
        for what, unit, value in (
            ("aggregation", "s", paper.seconds),
            ("upload", "MB", paper.nbytes / MB),
            ("test accuracy", "points", paper.change),
        ):
            who = f"{paper.batch} values"
            entries.append(Entry(row, who, "paper", what, unit, published(value), x))
    refused = [
        f"{name(c['ring'], server_weighs=c['weighs'])}, {c['scale']} bits"
        for c in costs
        if "values" not in c and c["slots"] == c["ring"] // 2
    ]
    limits = ", ".join(f"{bits} at n = {ring}" for ring, bits in BUDGET.items())
    taken = max(cost.get("values", 0) for cost in costs)
    notes = (
        f"The CNN, {CNN.values:,} values, projected from {taken:,}; three clients, who weigh unless it "
        "is said. The largest error is of those values, of standard deviation 0.02; MB of 2^20 bytes.",
        f"The paper's batch leaves its ring alone: 256 KB a ciphertext at each batch. So n = "
        f"{PAPERS_RING} is timed with as many slots used, and beside it the ring of twice the batch. "
        f"128 bits of security leave a modulus of {limits} (the homomorphic encryption standard's "
        f"table). Too long for that, and refused by TenSEAL: {'; '.join(refused) or 'none'}.",
        "Noise is the scheme's, whatever the batch: errors at 14 bits are larger than weights. The "
        "paper's changes of accuracy at 14 bits, -0.28, -0.06 and -1.85 points, are of one noise: its "
        "runs differ by more than that. Ours, one of 360 test images being 0.28 points: best of "
        f"{learned['rounds']} rounds of three clients on scikit-learn's digits, a CNN of 38,282 values "
        f"and {100 * learned['clear']:.1f}% in clear; clients weigh.",
    )
    chart = Chart(
        "lines", ("aggregation", "upload", "largest error"), log=True, xlabel="scaling bits"
    )
    return [
        Result(
            "fedml-table-6", "FedML-HE, Table 6", "CKKS by batch and scale",
            tuple(entries), chart, notes,
        ),
    ]  # fmt: skip


def _measured(row: str, cost: dict[str, Any], x: float) -> list[Entry]:
    factor = CNN.values / cost["values"]
    each = (
        ("aggregation", "s", Marked(cost["seconds"] * factor, "sampled")),
        ("upload", "MB", Marked(cost["bytes"] * factor / MB, "sampled")),
        ("largest error", "", measured(cost["error"])),
    )
    # Of both ways to weigh, the picture has the one that takes no level.
    at = None if cost["weighs"] else x
    return [Entry(row, _who(cost), "peer", *what, at) for what in each]


TABLE_6 = Section("fedml-table-6", "FedML-HE", _steps, _report, ("Table 6",))

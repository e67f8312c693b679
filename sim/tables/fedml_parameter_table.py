"""FedML-HE's Table 6 as a section: `fedml_parameters`' measurements beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flhe_lab.bench.fedml_models import CNN, MB
from flhe_lab.tables.fedml_parameters import BUDGET, accuracy, cost_of_setups, name
from flhe_lab.tables.fedml_published import BATCHES, SCALES, TABLE_6
from flhe_lab.tables.marked import Marked, measured
from flhe_lab.tables.section import Found, Plan, Step
from flhe_lab.tables.table import Line, Table, section

TIME, SIZE = "aggregation", "upload"


def parameter_steps(plan: Plan) -> list[Step]:
    """Costs by batch and scale; what learning through them comes to."""
    values, quick = 4 * BATCHES[-1] * (1 if plan.quick else 4), "-quick" if plan.quick else ""
    rounds = 3 if plan.quick else 8
    rings = (4096,) if plan.quick else tuple(BUDGET)
    scales = (14, 52) if plan.quick else SCALES
    return [
        Step(
            f"fedml-parameters-{values}{quick}",
            lambda say: cost_of_setups(values, 1 if plan.quick else 3, say),
            "CKKS by batch and scale",
            weight=8.0 if plan.quick else 60.0,
        ),
        Step(
            f"fedml-accuracy-{rounds}-{len(rings)}-{len(scales)}",
            lambda say: accuracy(rings, scales, rounds, say, 150 if plan.quick else 0),
            "learning digits through CKKS",
            weight=10.0 if plan.quick else 90.0,
        ),
    ]


def _parameters(plan: Plan, found: Found) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    costs, learned = (found[each.key] for each in parameter_steps(plan))
    return costs, learned


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    costs, learned = _parameters(plan, found)
    changes = {
        (each["ring"], each["scale"]): 100 * (each["best"] - learned["clear"])
        for each in learned["encrypted"]
    }
    for paper in sorted(TABLE_6, key=lambda paper: paper.scale):
        row, x = f"{paper.scale} bits", float(paper.scale)
        for cost in costs:
            if (cost["slots"], cost["scale"]) == (paper.batch, paper.scale) and "values" in cost:
                weighs = cost["weighs"]
                who = f"n = {cost['ring']}, {cost['slots']} values"
                who += ", server weighs" if weighs else ""
                # Of both ways to weigh, the picture has the one that takes no level.
                yield Line(row, who, "peer", _measured(cost), None if weighs else x)
                change = changes.get((cost["ring"], cost["scale"]))
                if change is not None and not weighs:
                    yield Line(row, who, "peer", {"test accuracy": measured(change)}, x)
        theirs = {TIME: paper.seconds, SIZE: paper.nbytes / MB, "test accuracy": paper.change}
        yield Line(row, f"{paper.batch} values", "paper", theirs, x)


def _measured(cost: Mapping[str, Any]) -> dict[str, Marked]:
    factor = CNN.values / cost["values"]
    seconds, size = cost["seconds"] * factor, cost["bytes"] * factor / MB
    return {
        TIME: Marked(seconds, "sampled"),
        SIZE: Marked(size, "sampled"),
        "largest error": measured(cost["error"]),
    }


def _told(plan: Plan, found: Found) -> dict[str, object]:
    costs, learned = _parameters(plan, found)
    refused = [
        f"{name(c['ring'], server_weighs=c['weighs'])}, {c['scale']} bits"
        for c in costs
        if "values" not in c and c["slots"] == c["ring"] // 2
    ]
    return {
        "taken": max(cost.get("values", 0) for cost in costs),
        "refused": "; ".join(refused) or "none",
        "rounds": learned["rounds"],
        "clear": 100 * learned["clear"],
    }


TABLE_6_SECTION = section(parameter_steps, Table("fedml-table-6", _lines, _told))

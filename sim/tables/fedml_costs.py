"""FedML-HE's Tables 4 to 8 and all its figures: what an aggregation costs, and a cycle of training.

All but Table 6 and Figures 5, 12 and 14a come of `fedml_measure`'s turns; what is said of selective
encryption is of one run. A cycle is one of `flhe_lab.advise.round_model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flhe_lab.advise.wan import named
from flhe_lab.papers.published import MB
from flhe_lab.tables import fedml_measure as turns
from flhe_lab.tables import phase_costs
from flhe_lab.tables.evaluation import TOTAL, played, trained
from flhe_lab.tables.fedml_map import FIGURE_5
from flhe_lab.tables.fedml_parameters import TABLE_6_SECTION
from flhe_lab.tables.fedml_threshold import FIGURE_12
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.result import Marked, projected, proportional, sampled
from flhe_lab.tables.table import Found, Line, Plan, Section, Step, Table, section

PAPER = "FedML-HE (PALISADE)"
TIME, SIZE = "aggregation", "upload"
"""Quantities: the three phases one after the other, as in the paper; one client's bytes."""


def noted(plan: Plan, _found: Found) -> dict[str, object]:
    """What the note on samples names: values of the longest vector that is run whole."""
    return {"longest": turns.longest(plan)}


def _steps(models: Iterable[Any], plan: Plan) -> list[Step]:
    """The turns that tell what models cost; of those beyond the longest once."""
    made = (turns.step(model.values, turns.SHARES, plan) for model in models)
    return list({one.key: one for one in made}.values())


def row_of(model: Any) -> str:
    """A model as tables call it."""
    return f"{model.name} ({model.values:,})"


def numbers(cost: Cost) -> dict[str, Marked]:
    """Total seconds and MB of one aggregation."""
    return {TIME: cost.work_s(turns.COHORT), SIZE: cost.upload_bytes / MB}


def told(seconds: float, nbytes: float) -> dict[str, float]:
    """The same as the paper says."""
    return {TIME: seconds, SIZE: nbytes / MB}


# --- Table 4, Figures 2 and 7: by the size of the model ---

BY_SIZE = (turns.PLAIN, *map(turns.ours, (0.1, 0.5, 1.0)), turns.TENSEAL, turns.FLARE)


def _table_4(plan: Plan, found: Found) -> Iterator[Line]:
    for model in turns.MODELS:
        seen = turns.costs(model.values, turns.SHARES, plan, found)
        row, x = row_of(model), model.values
        for cost in (seen[each] for each in BY_SIZE):
            yield Line(row, cost.who, cost.group, numbers(cost), x)
        yield Line(row, turns.PLAIN, "paper", told(model.plain_s, model.plain_bytes), x)
        yield Line(row, PAPER, "paper", told(model.he_s, model.he_bytes), x)


# --- Table 7: by the share that is encrypted ---


def by_share(plan: Plan) -> Step:
    """The turns at all shares of the paper."""
    return turns.step(turns.VIT.values, [*turns.TABLE_7], plan)


def _table_7(plan: Plan, found: Found) -> Iterator[Line]:
    seen = turns.costs(turns.VIT.values, [*turns.TABLE_7], plan, found)
    for share, paper in turns.TABLE_7.items():
        row, x = f"{share:.0%}", 100 * share
        theirs = turns.tenseals(share) if share else turns.PLAIN
        yield Line(row, turns.OURS, "ours", numbers(seen[turns.ours(share)]), x)
        yield Line(row, turns.TENSEAL, "peer", numbers(seen[theirs]), x)
        yield Line(row, PAPER, "paper", told(paper.seconds, paper.nbytes), x)


# --- Table 5: fewer values travel, all of those encrypted ---


def fewer(values: int, plan: Plan, found: Found) -> dict[str, Cost]:
    """Costs of so many values, in proportion; choosing them and remembering the rest is not in them."""
    seen = turns.costs(turns.VIT.values, [*turns.TABLE_7], plan, found)
    return {name: cost.scaled(values / turns.VIT.values) for name, cost in seen.items()}


def _table_5(plan: Plan, found: Found) -> Iterator[Line]:
    for model, paper in turns.TABLE_5.items():
        whole, at = turns.costs(model.values, turns.SHARES, plan, found), row_of(model)
        sent = fewer(paper.values, plan, found)
        for who, name in (
            ("in clear", turns.PLAIN),
            ("FedML-HE", turns.OURS),
            ("TenSEAL, server weighs", turns.TENSEAL),
        ):
            some = {} if name == turns.PLAIN else numbers(sent[name])
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


# --- Table 8: by framework ---

HERE = {
    "plain": turns.PLAIN,
    "ours": turns.OURS,
    "ours 10%": turns.ours(0.1),
    "TenSEAL": turns.TENSEAL,
    "TenSEAL 10%": turns.tenseals(0.1),
    "FLARE": turns.FLARE,
}


def _table_8(plan: Plan, found: Found) -> Iterator[Line]:
    seen = turns.costs(turns.CNN.values, turns.SHARES, plan, found)
    for row in (*HERE, "IBMFL"):
        if row in HERE:
            cost = seen[HERE[row]]
            here = "here" if cost.group == "ours" else "here, TenSEAL"
            yield Line(row, here, cost.group, numbers(cost))
        if row in turns.TABLE_8:
            theirs = turns.TABLE_8[row]
            yield Line(row, "FedML-HE", "paper", told(theirs.seconds, theirs.nbytes))


EPOCH = 1000
"""Images of one client's local epoch."""

PIXELS = 224
KEPT_SHARE = 0.3
"""Encrypted of what is sent, in Fig. 8's optimized setup."""


def training_step(plan: Plan) -> Step:
    """Seconds of one image of ResNet-50, forwards, backwards and a step."""
    batch, batches = (2, 1) if plan.quick else (16, 3)
    return Step(
        f"training-resnet50-{batch}-{batches}",
        lambda _say: train_resnet(batch, batches, PIXELS),
        "ResNet-50: training",
    )


def train_resnet(batch: int, batches: int, pixels: int) -> dict[str, Any]:
    """Train torchvision's ResNet-50 on noise, one batch that warms up and then those that count."""
    import torch
    from torchvision.models import resnet50

    from flhe_app.tasks.base import Examples

    random = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, pixels, pixels, generator=random)
    labels = torch.randint(1000, (batch,), generator=random)
    return trained(resnet50(), Examples(images, labels), batches)


NETWORKS = {
    "fedml-200": "200 MB/s",
    "fedml-infiniband": "Infiniband, 5 GB/s",
    "fedml-region": "one region, 592 MB/s",
    "fedml-regions": "two regions, 15.6 MB/s",
}


def _figure_8(plan: Plan, found: Found) -> Iterator[Line]:
    training = found[training_step(plan).key]
    train_s = sampled(training["seconds_per_batch"] / training["batch"] * EPOCH)
    whole = turns.costs(turns.RESNET_50.values, turns.SHARES, plan, found)
    sent = fewer(turns.TOP_K, plan, found)
    bars = {
        turns.PLAIN: whole[turns.PLAIN],
        turns.OURS: whole[turns.OURS],
        "FedML-HE, optimized": sent[turns.ours(KEPT_SHARE)],
        turns.TENSEAL: whole[turns.TENSEAL],
        "TenSEAL, optimized": sent[turns.tenseals(KEPT_SHARE)],
    }
    for network, row in NETWORKS.items():
        for who, cost in bars.items():
            seen = played(cost, train_s, named(network).links(turns.COHORT))
            parts = {  # they add up to the cycle
                "encryption": cost.encrypt_s,
                "transfer": projected(seen.breakdown.transfer_s),
                "aggregation": cost.add_s * turns.COHORT,
                "decryption": cost.decrypt_s,
            }
            beside = sum(parts.values(), projected(0.0)) / seen.parts[TOTAL] * 100
            columns = {"training": train_s, **parts, "cycle": seen.parts[TOTAL]}
            yield Line(row, who, cost.group, {**columns, "beside training": beside})


CROWD = (turns.PLAIN, turns.OURS, phase_costs.CKKS)


def _crowd(plan: Plan) -> tuple[int, dict[int, Step]]:
    """Values that are taken of the turns.CNN, and steps by the number of clients."""
    values, cohorts = (
        (30_720, (3, 10, 50)) if plan.quick else (turns.CNN.values, (3, 10, 50, 100, 200))
    )
    return values, {cohort: phase_costs.step(values, cohort, CROWD, plan) for cohort in cohorts}


def _figure_14a(plan: Plan, found: Found) -> Iterator[Line]:
    values, steps = _crowd(plan)
    for cohort, made in steps.items():
        for who, cost in phase_costs.read(found[made.key]).items():
            parts = {
                "encryption": cost.encrypt_s,
                "aggregation": cost.add_s * (cohort - 1),
                "decryption": cost.decrypt_s,
            }
            whole = {what: proportional(s, turns.CNN.values / values) for what, s in parts.items()}
            yield Line(f"{cohort} clients", who, cost.group, whole, float(cohort))


def _crowded(plan: Plan, found: Found) -> dict[str, object]:
    """Values, and the server's seconds with most clients, ours and the shortest TenSEAL's."""
    values, steps = _crowd(plan)
    most, step = max(steps.items())
    costs = phase_costs.read(found[step.key])
    ours, theirs = (costs[who].add_s.value * (most - 1) for who in CROWD[1:])
    factor = turns.CNN.values / values
    return {"values": values, "most": most, "ours": ours * factor, "theirs": theirs * factor}


SECTIONS: Sequence[Section] = (
    section(lambda plan: _steps(turns.MODELS, plan), Table("fedml-table-4", _table_4, noted)),
    TABLE_6_SECTION,
    section(lambda plan: [by_share(plan)], Table("fedml-table-7", _table_7, noted)),
    section(lambda plan: _steps([turns.CNN], plan), Table("fedml-table-8", _table_8, noted)),
    section(
        lambda plan: [by_share(plan), *_steps(turns.TABLE_5, plan)],
        Table("fedml-table-5", _table_5, noted),
    ),
    FIGURE_5,
    section(
        lambda plan: [
            *_steps([turns.RESNET_50], plan),
            by_share(plan),
            training_step(plan),
        ],
        Table("fedml-figure-8", _figure_8, noted),
    ),
    FIGURE_12,
    section(
        lambda plan: list(_crowd(plan)[1].values()),
        Table("fedml-figure-14a", _figure_14a, _crowded),
    ),
)

"""FedML-HE's Figures 8 and 14: a cycle, clients and networks; with them Table 5, Figures 5 and 12.

A cycle is one of `flhe_lab.advise.round_model`: transfer and its sum are projected. Training is an
epoch of EPOCH images on a client, on one thread of this machine, sampled from a few batches; the paper
had a GPU, and does not say how many images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flhe_lab.advise.wan import named
from flhe_lab.papers.learning import quiet
from flhe_lab.tables import phase_costs
from flhe_lab.tables.evaluation import TOTAL, Round, played
from flhe_lab.tables.fedml_costs import FEWER
from flhe_lab.tables.fedml_costs import sampled as sampled_told
from flhe_lab.tables.fedml_map import FIGURE_5
from flhe_lab.tables.fedml_measure import (
    OURS,
    PLAIN,
    SHARES,
    TENSEAL,
    costs,
    ours,
    reduced_costs,
    reduced_step,
    step,
    tenseals,
    total_s,
)
from flhe_lab.tables.fedml_published import CNN, COHORT, RESNET_50
from flhe_lab.tables.fedml_threshold import FIGURE_12
from flhe_lab.tables.learned import batch_seconds
from flhe_lab.tables.marked import Marked, projected, proportional, sampled
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.table import Line, Table, section

EPOCH = 1000
"""Images of one client's local epoch."""

PIXELS = 224
KEPT_SHARE = 0.3
"""Encrypted of what is sent, in Fig. 8's optimized setup."""

# --- training ---


def training_step(plan: Plan) -> Step:
    """Seconds of one image of ResNet-50, forwards, backwards and a step."""
    batch, batches = (2, 1) if plan.quick else (16, 3)
    return Step(
        f"training-resnet50-{batch}-{batches}",
        lambda _say: train_resnet(batch, batches, PIXELS),
        "ResNet-50: training",
        weight=0.4 * batch * (batches + 1),
    )


def train_resnet(batch: int, batches: int, pixels: int) -> dict[str, Any]:
    """Train torchvision's ResNet-50 on noise, one batch that warms up and then those that count."""
    import torch
    from torchvision.models import resnet50

    random = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, pixels, pixels, generator=random)
    labels = torch.randint(1000, (batch,), generator=random)
    model = resnet50()
    steps = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train() -> None:
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()

    with quiet(1):
        seconds = batch_seconds(train, batches)
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"seconds_per_image": seconds / batch, "parameters": count, "batch": batch}


def _train_s(plan: Plan, found: Found) -> Marked:
    return sampled(found[training_step(plan).key]["seconds_per_image"] * EPOCH)


# --- Figures 8 and 14b ---


def _whole_step(plan: Plan) -> Step:
    return step(RESNET_50.values, SHARES, plan)


def _cycle(cost: Cost, train_s: Marked, network: str) -> Round:
    return played(cost, train_s, named(network).links(COHORT))


def _figure_8(plan: Plan, found: Found) -> Iterator[Line]:
    train_s = _train_s(plan, found)
    whole = costs(RESNET_50.values, SHARES, plan, found)
    less = reduced_costs(RESNET_50.values, plan, found)
    for row, everything, part in (
        ("FedML-HE", OURS, ours(KEPT_SHARE)),
        ("TenSEAL", TENSEAL, tenseals(KEPT_SHARE)),
    ):
        bars = (("plain", whole[PLAIN]), ("all", whole[everything]), ("optimized", less[part]))
        for who, cost in bars:
            seen = _cycle(cost, train_s, "fedml-200")
            parts = {  # they add up to the cycle
                "encryption": cost.encrypt_s,
                "transfer": projected(seen.breakdown.transfer_s),
                "aggregation": cost.add_s * COHORT,
                "decryption": cost.decrypt_s,
            }
            beside = sum(parts.values(), projected(0.0)) / seen.parts[TOTAL] * 100
            columns = {"training": train_s, **parts, "cycle": seen.parts[TOTAL]}
            yield Line(row, who, cost.group, {**columns, "beside training": beside})


NETWORKS = {
    "fedml-infiniband": "Infiniband, 5 GB/s",
    "fedml-region": "one region, 592 MB/s",
    "fedml-regions": "two regions, 15.6 MB/s",
}


def _figure_14b(plan: Plan, found: Found) -> Iterator[Line]:
    train_s = _train_s(plan, found)
    whole = costs(RESNET_50.values, SHARES, plan, found)
    for network, row in NETWORKS.items():
        for cost in (whole[who] for who in (PLAIN, OURS, TENSEAL)):
            seen = _cycle(cost, train_s, network)
            moved = projected(seen.breakdown.transfer_s)
            numbers = {
                "communication": moved,
                "others": total_s(cost) + train_s,
                "communication's part": moved / seen.parts[TOTAL] * 100,
            }
            yield Line(row, cost.who, cost.group, numbers)


# --- Figure 14a ---

CROWD = (PLAIN, OURS, phase_costs.CKKS)


def _crowd(plan: Plan) -> tuple[int, dict[int, Step]]:
    """Values that are taken of the CNN, and steps by the number of clients."""
    values, cohorts = (30_720, (3, 10, 50)) if plan.quick else (CNN.values, (3, 10, 50, 100, 200))
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
            whole = {what: proportional(s, CNN.values / values) for what, s in parts.items()}
            yield Line(f"{cohort} clients", who, cost.group, whole, float(cohort))


SECTIONS: Sequence[Section] = (
    FEWER,
    FIGURE_5,
    section(
        lambda plan: [
            _whole_step(plan),
            reduced_step(RESNET_50.values, plan),
            training_step(plan),
        ],
        Table("fedml-figure-8", _figure_8, sampled_told),
    ),
    FIGURE_12,
    section(
        lambda plan: list(_crowd(plan)[1].values()),
        Table("fedml-figure-14a", _figure_14a, lambda plan, _found: {"values": _crowd(plan)[0]}),
    ),
    section(
        lambda plan: [_whole_step(plan), training_step(plan)],
        Table("fedml-figure-14b", _figure_14b, sampled_told),
    ),
)

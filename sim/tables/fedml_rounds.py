"""FedML-HE's Figures 8 and 14: a cycle, clients and networks; with them its Table 5, Figures 5 and 12.

A cycle is one of `flhe.sim.advise.round_model`: transfer and its sum are projected. Training is one
epoch of EPOCH images on a client, on one thread of this machine, sampled from a few batches; the paper
had a GPU, and does not say how many images.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flhe.sim.advise.wan import named
from flhe.sim.bench.fedml_models import CNN, COHORT
from flhe.sim.tables import phase_costs
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.fedml_fewer import TABLE_5
from flhe.sim.tables.fedml_map import FIGURE_5
from flhe.sim.tables.fedml_measure import (
    OURS,
    PLAIN,
    SHARES,
    TENSEAL,
    Aggregation,
    ours,
    read,
    reduced_step,
    step,
    tenseals,
)
from flhe.sim.tables.fedml_models_table import sampled_note
from flhe.sim.tables.fedml_published import RESNET_50, TOP_K
from flhe.sim.tables.fedml_threshold import FIGURE_12
from flhe.sim.tables.marked import Marked, projected, sampled
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.rounds import Round, played, proportional
from flhe.sim.tables.section import Found, Plan, Section, Step

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

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        random = torch.Generator().manual_seed(0)
        images = torch.rand(batch, 3, pixels, pixels, generator=random)
        labels = torch.randint(1000, (batch,), generator=random)
        model, seconds = resnet50(), []
        steps = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for turn in range(batches + 1):
            began = time.perf_counter()
            steps.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            if turn > 0:
                seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"seconds_per_image": min(seconds) / batch, "parameters": count, "batch": batch}


def _train_s(plan: Plan, found: Found) -> Marked:
    return sampled(found[training_step(plan).key]["seconds_per_image"] * EPOCH)


# --- Figures 8 and 14b ---


def _whole_step(plan: Plan) -> Step:
    return step(RESNET_50.values, SHARES, plan)


def _reduced(values: int, plan: Plan, found: Found) -> dict[str, Aggregation]:
    measured = found[reduced_step(values, TOP_K, plan).key]
    return read(measured, values)


def _cycle(cost: Aggregation, train_s: Marked, network: str) -> Round:
    links = named(network).links(COHORT)
    return played(cost.cost(), train_s, links, cost.download_bytes.value)


def _parts(seen: Round, cost: Aggregation) -> Mapping[str, Marked]:
    """A cycle's parts; they add up to it."""
    return {
        "encryption": seen.encrypt_s,
        "transfer": projected(seen.breakdown.transfer_s),
        "aggregation": cost.aggregate_s,
        "decryption": seen.decrypt_s,
    }


def _cycle_notes(plan: Plan) -> tuple[str, ...]:
    return (
        f"ResNet-50, {RESNET_50.values:,} values, {COHORT} clients at the same speed, the server's own "
        f"link not limiting. Training is one epoch of {EPOCH:,} images of {PIXELS} x {PIXELS} on one "
        "thread, sampled from a few batches; the paper trained on a T4 GPU and tells no images, so its "
        "training is a smaller part of a cycle. Its figure has no numbers in text.",
        sampled_note(plan),
    )


def _figure_8_steps(plan: Plan) -> list[Step]:
    steps = (_whole_step, lambda p: reduced_step(RESNET_50.values, TOP_K, p), training_step)
    return [make(plan) for make in steps]


def _figure_8(plan: Plan, found: Found) -> list[Result]:
    train_s = _train_s(plan, found)
    whole = read(found[_whole_step(plan).key], RESNET_50.values)
    less = _reduced(RESNET_50.values, plan, found)
    entries: list[Entry] = []
    for row, everything, part in (
        ("FedML-HE", OURS, ours(KEPT_SHARE)),
        ("TenSEAL", TENSEAL, tenseals(KEPT_SHARE)),
    ):
        bars = (("plain", whole[PLAIN]), ("all", whole[everything]), ("optimized", less[part]))
        for who, cost in bars:
            seen = _cycle(cost, train_s, "fedml-200")
            parts = _parts(seen, cost)
            columns = {"training": seen.train_s, **parts, "cycle": seen.total_s}
            entries += [Entry(row, who, cost.group, w, "s", n) for w, n in columns.items()]
            beside = sum(parts.values(), projected(0.0)) / seen.total_s * 100
            entries.append(Entry(row, who, cost.group, "beside training", "%", beside))
    notes = (
        *_cycle_notes(plan),
        "200 MB/s. The picture leaves training out, which is the same in all. Optimized: as "
        f"DoubleSqueeze, {TOP_K:,} values travel and the rest is remembered; their coordinates are the "
        "group's, since ciphertexts of different coordinates do not add up, and choosing them anew is "
        f"not timed; {KEPT_SHARE:.0%} of those values are encrypted.",
    )
    chart = Chart("stacked", ("encryption", "transfer", "aggregation", "decryption"))
    return [
        Result(
            "fedml-figure-8", "FedML-HE, Figure 8", "a training cycle of ResNet-50",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


NETWORKS = {
    "fedml-infiniband": "Infiniband, 5 GB/s",
    "fedml-region": "one region, 592 MB/s",
    "fedml-regions": "two regions, 15.6 MB/s",
}


def _figure_14b_steps(plan: Plan) -> list[Step]:
    return [_whole_step(plan), training_step(plan)]


def _figure_14b(plan: Plan, found: Found) -> list[Result]:
    train_s = _train_s(plan, found)
    whole = read(found[_whole_step(plan).key], RESNET_50.values)
    entries: list[Entry] = []
    for network, row in NETWORKS.items():
        for who in (PLAIN, OURS, TENSEAL):
            cost = whole[who]
            seen = _cycle(cost, train_s, network)
            moved = projected(seen.breakdown.transfer_s)
            others = cost.total_s + train_s
            for what, unit, number in (
                ("communication", "s", moved),
                ("others", "s", others),
                ("communication's part", "%", moved / seen.total_s * 100),
            ):
                entries.append(Entry(row, who, cost.group, what, unit, number))
    chart = Chart("bars", ("communication", "communication's part"), log=True)
    return [
        Result(
            "fedml-figure-14b", "FedML-HE, Figure 14b", "networks, all of ResNet-50 encrypted",
            tuple(entries), chart, _cycle_notes(plan),
        )
    ]  # fmt: skip


# --- Figure 14a ---

CROWD = (PLAIN, OURS, phase_costs.CKKS)


def _crowd(plan: Plan) -> tuple[int, tuple[int, ...]]:
    """Values that are taken of the CNN, and numbers of clients."""
    return (30_720, (3, 10, 50)) if plan.quick else (CNN.values, (3, 10, 50, 100, 200))


def _crowd_steps(plan: Plan) -> list[Step]:
    values, cohorts = _crowd(plan)
    return [phase_costs.step(values, cohort, CROWD, plan) for cohort in cohorts]


def _figure_14a(plan: Plan, found: Found) -> list[Result]:
    values, cohorts = _crowd(plan)
    entries: list[Entry] = []
    for cohort, made in zip(cohorts, _crowd_steps(plan), strict=True):
        for who, cost in phase_costs.read(found[made.key]).items():
            parts = {
                "encryption": cost.encrypt_s,
                "aggregation": cost.add_s * (cohort - 1),
                "decryption": cost.decrypt_s,
            }
            for what, seconds in parts.items():
                number = proportional(seconds, CNN.values / values)
                row = f"{cohort} clients"
                entries.append(Entry(row, who, cost.group, what, "s", number, float(cohort)))
    notes = (
        f"The CNN, {CNN.values:,} values, all encrypted; {values:,} are run, and what a call costs by "
        "itself is multiplied too where they are fewer. Encryption and "
        "decryption are of one client, making a sealer included; aggregation is the server's, on one "
        "thread, of all uploads, each checked by ours as it comes; clients weigh. The paper's figure "
        "has no numbers in text.",
    )
    chart = Chart("lines", ("encryption", "aggregation", "decryption"), log=True, xlabel="clients")
    return [
        Result(
            "fedml-figure-14a", "FedML-HE, Figure 14a", "steps by the number of clients",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


SECTIONS: Sequence[Section] = (
    TABLE_5,
    FIGURE_5,
    Section("fedml-figure-8", "FedML-HE", _figure_8_steps, _figure_8, ("Figure 8",)),
    FIGURE_12,
    Section("fedml-figure-14a", "FedML-HE", _crowd_steps, _figure_14a, ("Figure 14a",)),
    Section("fedml-figure-14b", "FedML-HE", _figure_14b_steps, _figure_14b, ("Figure 14b",)),
)

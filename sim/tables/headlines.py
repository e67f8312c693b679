"""The ratios that one would quote, each of one run here, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flhe_lab.advise.wan import uniform
from flhe_lab.bench.secure_sums import SECAGG
from flhe_lab.tables import fedml_measure as turns
from flhe_lab.tables import phase_costs as costs
from flhe_lab.tables.evaluation import TOTAL, batch_s, played, training_step
from flhe_lab.tables.result import Marked
from flhe_lab.tables.sash_times import ratio_of, ratio_step
from flhe_lab.tables.table import (
    Found,
    Line,
    Plan,
    Section,
    Step,
    Table,
    declarations,
    section,
)

CNN, COHORT, MBPS = 1_200_000, 10, 40.0
"""FLASHE's CNN and cohort; the slowest link that its paper measured (Sec. 2.3)."""

BATCHES = 5
"""Batches of 128 examples that a client trains in a round: 640 images. The paper does not say."""

AT_CNN = (
    costs.PLAIN,
    costs.FLASHE,
    costs.ESAFL,
    costs.ESAFL_NARROW,
    costs.PHE_BATCHED,
    costs.BFV_PAPER,
    costs.BFV,
    costs.CKKS_PAPER,
    costs.CKKS,
)


def cnn_step(plan: Plan) -> Step:
    """Everybody at FLASHE's CNN: one run, in turns."""
    return costs.step(CNN, COHORT, AT_CNN, plan)


def _selected(plan: Plan, found: Found) -> list[costs.Cost]:
    """FedML-HE of its CNN: nothing, a tenth and everything encrypted, of one run."""
    seen = turns.costs(turns.CNN.values, turns.SHARES, plan, found)
    return [seen[turns.ours(share)] for share in (0, 0.1, 1)]


def _ratios(plan: Plan, found: Found) -> Iterator[tuple[str, Marked]]:
    """Name of a row, and its ratio."""
    at_cnn = costs.read(found[cnn_step(plan).key])
    train_s = batch_s("cnn", found, plan) * BATCHES
    links = uniform(MBPS, cohort=COHORT).links(COHORT)
    total_s = {name: played(cost, train_s, links).parts[TOTAL] for name, cost in at_cnn.items()}
    sent = {name: cost.upload_bytes for name, cost in at_cnn.items()}
    yield "round", total_s[costs.FLASHE] / total_s[costs.PLAIN]
    yield "traffic", sent[costs.FLASHE] / sent[costs.PLAIN]
    yield "integers", sent[costs.FLASHE] / (2 * CNN)
    for name in (costs.PHE_BATCHED, costs.BFV_PAPER, costs.BFV, costs.CKKS_PAPER, costs.CKKS):
        yield name, total_s[name] / total_s[costs.FLASHE]
    yield "narrow", sent[costs.ESAFL_NARROW] / sent[costs.PLAIN]
    yield "secagg", ratio_of(plan, found, SECAGG)
    yield "flower", ratio_of(plan, found)
    selected = _selected(plan, found)
    for what, numbers in (
        ("seconds", [cost.work_s(turns.COHORT) for cost in selected]),
        ("bytes", [cost.upload_bytes for cost in selected]),
    ):
        clear, tenth, whole = numbers
        yield what, (whole - clear) / (tenth - clear)


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    """Each ratio, and whether it keeps to its bound; beside it the paper's, where there is one."""
    for name, here in _ratios(plan, found):
        declared = declarations()["headlines"]["rows"][name]
        most, least = declared.get("most"), declared.get("least")
        holds = here.value >= least if most is None else here.value <= most
        bound = f"at least {least:g}" if most is None else f"at most {most:g}"
        said = f"here, {bound}: {'holds' if holds else 'does NOT hold'}"
        yield Line(declared["row"], said, "ours", {"ratio": here})
        for who, ratio in declared.get("paper", {}).items():
            yield Line(declared["row"], who, "paper", {"ratio": ratio})


def _told(plan: Plan, found: Found) -> dict[str, object]:
    """Everything encrypted to a tenth, what is in clear included: seconds, bytes."""
    _, tenth, whole = _selected(plan, found)
    seconds = whole.work_s(turns.COHORT) / tenth.work_s(turns.COHORT)
    return {"seconds": seconds.value, "nbytes": (whole.upload_bytes / tenth.upload_bytes).value}


SECTIONS: Sequence[Section] = (
    section(
        lambda plan: [
            training_step("cnn", plan),
            cnn_step(plan),
            ratio_step(plan),
            turns.step(turns.CNN.values, turns.SHARES, plan),
        ],
        Table("headlines", _lines, _told),
        paper="headlines",
    ),
)

"""The ratios that one would quote, each of one run here, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flhe_lab.advise.wan import uniform
from flhe_lab.bench.secure_sums import SECAGG
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
SELECTED = (costs.FEDML_CLEAR, costs.FEDML, costs.FEDML_TENTH)


def cnn_step(plan: Plan) -> Step:
    """Everybody at FLASHE's CNN: one run, in turns."""
    return costs.step(CNN, COHORT, AT_CNN, plan)


def selected_step(plan: Plan) -> Step:
    """FedML-HE, all and a tenth: one run, in turns."""
    return costs.step(1_000_000 if plan.quick else 10_000_000, 3, SELECTED, plan)


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
    part = costs.read(found[selected_step(plan).key])
    clear, whole, tenth = (part[name] for name in SELECTED)
    yield "seconds", whole.work_s(2) / (tenth.work_s(2) - clear.work_s(2))
    yield "bytes", whole.upload_bytes / (tenth.upload_bytes - clear.upload_bytes)


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    """Each ratio, and whether it keeps to its bound; beside it the paper's, where there is one."""
    for name, here in _ratios(plan, found):
        declared = declarations()["headlines"]["rows"][name]
        row = declared["row"].format(millions=1 if plan.quick else 10)
        most, least = declared.get("most"), declared.get("least")
        holds = here.value >= least if most is None else here.value <= most
        bound = f"at least {least:g}" if most is None else f"at most {most:g}"
        said = f"here, {bound}: {'holds' if holds else 'does NOT hold'}"
        yield Line(row, said, "ours", {"ratio": here})
        for who, ratio in declared.get("paper", {}).items():
            yield Line(row, who, "paper", {"ratio": ratio})


def _told(plan: Plan, found: Found) -> dict[str, object]:
    """Everything encrypted to a tenth, what is in clear included: seconds, bytes."""
    part = costs.read(found[selected_step(plan).key])
    _, whole, tenth = (part[name] for name in SELECTED)
    nbytes = whole.upload_bytes / tenth.upload_bytes
    return {"seconds": (whole.work_s(2) / tenth.work_s(2)).value, "nbytes": nbytes.value}


SECTIONS: Sequence[Section] = (
    section(
        lambda p: [training_step("cnn", p), cnn_step(p), ratio_step(p), selected_step(p)],
        Table("headlines", _lines, _told),
        paper="headlines",
    ),
)

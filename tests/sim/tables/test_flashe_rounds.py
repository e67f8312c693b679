"""FLASHE's Figures 7, 8, 10 and 11 and Table 4, out of costs that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from flhe_lab.advise import prices
from flhe_lab.papers.convergence import project
from flhe_lab.tables import flashe_rounds
from flhe_lab.tables.flashe_paper import COHORT, MODELS
from flhe_lab.tables.flashe_rounds import LINK, RATIO, TENTHS, iteration, training
from flhe_lab.tables.headlines import AT_CNN
from flhe_lab.tables.learned import VALUES
from flhe_lab.tables.phase_costs import CKKS_PAPER, FLASHE, FLASHE_TENTH, PHE, PLAIN
from flhe_lab.tables.rounds import PARTS, TOTAL
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import FULL, PLANS, QUICK, of, result

WIDTH = {PLAIN: 4.0, FLASHE: 2.5}
"""Bytes of a value; 10 of everybody else's."""


def cost_row(values: int, name: str) -> dict[str, Any]:
    seconds = values / 1e7 if name in WIDTH else values / 1e5
    phases = {phase: [seconds, "measured"] for phase in ("encrypt", "add", "decrypt")}
    return {**phases, "bytes": [values * WIDTH.get(name, 10.0), "counted"], "note": ""}


def made_up(plan: Plan) -> dict[str, Any]:
    """What the steps of all sections would leave."""
    found: dict[str, Any] = {}
    for section in flashe_rounds.SECTIONS:
        for step in section.steps(plan):
            values = next((v for v in VALUES.values() if f"-{v}" in step.key), 0)
            if step.key.startswith("training"):
                found[step.key] = {"seconds_per_batch": 0.2, "batch": 128, "parameters": 1}
            elif step.key.startswith("costs"):
                found[step.key] = {name: cost_row(values, name) for name in AT_CNN}
            else:
                found[step.key] = sparse(values)
    return found


def sparse(values: int) -> dict[str, Any]:
    names = (flashe_rounds.PLAIN_TENTH, FLASHE_TENTH, PHE)
    rows = {}
    for name, width in zip(names, (0.45, 0.3, 516.0), strict=True):
        seconds, mark = (1e-3, "measured") if name != PHE else (values / 100, "sampled")
        phases = {phase: [seconds, mark] for phase in ("encrypt", "add", "decrypt")}
        rows[name] = {**phases, "bytes": [values * width, "counted"]}
    return {
        "rows": rows,
        "union": round(0.65 * values),
        "sent": round(0.1 * values),
        "support_bytes": round(0.06 * values),
        "sum_support_bytes": round(0.12 * values),
        "sum_bytes": {names[0]: round(2.7 * values), names[1]: round(2.2 * values)},
    }


@PLANS
def test_parts_of_an_iteration_add_up_for_everybody(plan: Plan) -> None:
    found = made_up(plan)
    for name, names in (("flashe-figure-7", flashe_rounds.NAMES), ("flashe-figure-10", TENTHS)):
        table = result(name, plan, found)
        for model in MODELS:
            for who in names:
                parts = [of(table, model, who, part).number for part in PARTS]
                total = of(table, model, who, TOTAL).number
                assert sum(p.value for p in parts) == pytest.approx(total.value)
                marks = (parts[0].mark, parts[-1].mark, total.mark)
                assert marks == ("measured", "projected", "projected")


def test_a_quick_run_says_which_models_it_did_not_measure() -> None:
    quick, full = (result("flashe-figure-8", plan, made_up(plan)) for plan in (QUICK, FULL))
    for model in MODELS:
        a, b = (of(table, model, FLASHE, "up").number for table in (quick, full))
        assert a.value == pytest.approx(b.value)
        assert b.mark == "counted"
        assert a.mark == ("counted" if model == "cnn" else "sampled")
    assert quick.notes[-1].startswith("A quick run measures CNN")
    assert not any("quick run" in note for note in full.notes)


@PLANS
def test_ours_and_the_papers_ratios_are_each_of_their_own(plan: Plan) -> None:
    table, what = result("flashe-figure-7", plan, made_up(plan)), f"{TOTAL}, to {FLASHE}"
    for model in MODELS:
        assert of(table, model, FLASHE, what).number.value == 1
        assert of(table, model, CKKS_PAPER, what).number.value > 1
    # FLASHE, Sec. 6.2: up to 15.1 times, on the CNN; 3.4 on ResNet-20.
    assert of(table, "cnn", "CKKS+bat", what, paper=True).number.value == pytest.approx(15.1, 0.01)
    least = of(table, "resnet20", "CKKS+bat", what, paper=True).number
    assert (least.value, least.mark) == (pytest.approx(3.4, 0.02), "published")


def test_the_papers_plain_traffic_is_of_20_bits_a_value() -> None:
    table = result("flashe-figure-8", FULL, made_up(FULL))
    for model in MODELS:
        megabytes = of(table, model, "plain", "traffic", paper=True).number.value
        assert 8e6 * megabytes / (2 * VALUES[model]) == pytest.approx(20, rel=0.02)
        ours = of(table, model, PLAIN, "traffic").number.value
        assert 8e6 * ours / (2 * VALUES[model]) == pytest.approx(32)


def test_table_4_is_the_iteration_by_the_papers_rounds() -> None:
    found = made_up(FULL)
    table = result("flashe-table-4", FULL, found)
    seen = iteration(
        flashe_rounds.costs("cnn", FULL, found)[CKKS_PAPER], training("cnn", found, FULL)
    )
    end = project(seen.breakdown, 277, prices.FLASHE, LINK, COHORT)
    for what, value in (("time", end.hours), ("traffic", end.traffic_gb), ("price", end.total_usd)):
        number = of(table, "cnn", CKKS_PAPER, what).number
        assert (number.value, number.mark) == (value, "projected")
    assert end.hours == pytest.approx(seen.total_s.value * 277 / 3600)


@PLANS
def test_paillier_of_a_tenth_is_a_tenth_of_paillier(plan: Plan) -> None:
    found = made_up(plan)
    for model in MODELS:
        cost, down = flashe_rounds.tenth_costs(model, plan, found)[flashe_rounds.PHE_TENTH]
        values = VALUES[model]
        assert cost.encrypt_s.value == pytest.approx(0.1 * values / 100, rel=1e-3)
        assert cost.decrypt_s.value == pytest.approx(0.65 * values / 100, rel=1e-3)
        assert cost.upload_bytes.value == pytest.approx(51.66 * values, rel=1e-3)
        assert down.value == pytest.approx((516 * 0.65 + 0.12) * values, rel=1e-3)
        assert cost.encrypt_s.mark == "sampled"


@PLANS
def test_figure_11_has_dense_and_sparse_and_the_papers_text(plan: Plan) -> None:
    table = result("flashe-figure-11", plan, made_up(plan))
    for model in MODELS:
        assert of(table, model, PLAIN, RATIO).number.value == 1
        sparse_ones = [of(table, model, name, RATIO).number for name in TENTHS]
        assert sparse_ones[1].value < sparse_ones[0].value < 1 < sparse_ones[2].value
        assert of(table, model, "Pai, top 10%", RATIO, paper=True).number.value == 20

"""ESAFL's Figures 4 to 6 and Table 5, out of costs that are made up."""

from __future__ import annotations

import pytest

from flhe.sim.bench.esafl_sizes import MODELS as TABLE_3
from flhe.sim.tables import batchcrypt_round, esafl_rounds
from flhe.sim.tables.batchcrypt_paper import COHORT, ITERATIONS, MODELS, line
from flhe.sim.tables.batchcrypt_rounds import SECTIONS as BATCHCRYPT_SECTIONS
from flhe.sim.tables.esafl_rounds import ENCRYPTED, traffic_mb
from flhe.sim.tables.phase_costs import ESAFL, ESAFL_NARROW, PHE, PHE_BATCHED, PLAIN
from flhe.sim.tables.rounds import PARTS, TOTAL
from flhe.sim.tables.runner import steps_of
from flhe.sim.tables.section import Plan
from tests.sim.tables.test_batchcrypt_rounds import FULL, PLANS, all_there, made_up, of

SECTIONS = [s for s in esafl_rounds.SECTIONS if s.steps is batchcrypt_round.steps]


@PLANS
def test_everybody_is_there_and_parts_add_up(plan: Plan) -> None:
    results = all_there(SECTIONS, plan, made_up(plan))
    assert set(results) == {f"esafl-{x}" for x in ("figure-4", "figure-5", "figure-6", "table-5")}
    for model in MODELS:
        for name in ENCRYPTED:
            figure = results["esafl-figure-4"]
            parts = [of(figure, model, name, part).number.value for part in PARTS]
            assert sum(parts) == pytest.approx(of(figure, model, name, TOTAL).number.value)
            assert of(results["esafl-figure-5"], model, name, "traffic").number.value > 0
        for name in (*ENCRYPTED, PLAIN):
            time = of(results["esafl-table-5"], model, name, "time").number
            assert time.mark == "projected"
        for name in (ESAFL, ESAFL_NARROW, PLAIN):
            assert of(results["esafl-figure-6"], model, name, TOTAL).number.value > 0


@PLANS
def test_both_papers_share_their_measurements(plan: Plan) -> None:
    mine, both = steps_of(SECTIONS, plan), steps_of((*BATCHCRYPT_SECTIONS, *SECTIONS), plan)
    assert {step.key for step in mine} <= {step.key for step in steps_of(BATCHCRYPT_SECTIONS, plan)}
    assert len(both) == len(steps_of(BATCHCRYPT_SECTIONS, plan))


def test_epochs_are_those_of_whom_each_stands_for() -> None:
    found = made_up(FULL)
    [table], [figure] = (
        r(FULL, found) for r in (esafl_rounds.report_table_5, esafl_rounds.report_4)
    )
    for name, epochs in ((PHE, 285), (PHE_BATCHED, 279), (ESAFL, 255), (ESAFL_NARROW, 255)):
        rounds = epochs * ITERATIONS["alexnet"]
        hours = of(table, "alexnet", name, "time").number.value
        one = of(figure, "alexnet", name, TOTAL).number.value
        assert hours * 3600 == pytest.approx(rounds * one)


def test_the_papers_ratios_are_the_papers() -> None:
    found = made_up(FULL)
    [table], [figure] = (
        r(FULL, found) for r in (esafl_rounds.report_table_5, esafl_rounds.report_5)
    )
    for model, faster, smaller in zip(MODELS, (204, 930, 953), (68, 103, 112), strict=True):
        told = of(table, model, "FATE", "time, to ESAFL", paper=True).number
        assert (told.value, told.mark) == (pytest.approx(faster, rel=2e-3), "published")
        size = of(figure, model, "FATE", "traffic, to ESAFL", paper=True).number.value
        assert size == pytest.approx(smaller, rel=0.04)
        assert of(table, model, ESAFL, "time, to ESAFL").number.value == 1
        assert of(table, model, PHE, "time, to ESAFL").number.mark == "projected"


# --- what notes say of the paper's numbers ---


def test_table_5_counts_nine_clients_of_fcn_and_one_of_the_others() -> None:
    for model, clients in zip(MODELS, (COHORT, 1, 1), strict=True):
        for mode in ("ESAFL", "plain"):
            said = line("ESAFL", model, mode)
            one = traffic_mb(model)[mode] / COHORT / 1024 * said.epochs * ITERATIONS[model]
            assert said.traffic_gb / one == pytest.approx(clients, rel=0.12)


def test_lstms_traffic_is_not_table_3s() -> None:
    for at, model in enumerate(MODELS):
        ours, clear = (line("ESAFL", model, mode) for mode in ("ESAFL", "plain"))
        by_5 = ours.traffic_gb / ours.epochs / (clear.traffic_gb / clear.epochs)
        by_3 = TABLE_3[at].traffic[1] / TABLE_3[at].plain_traffic
        assert (abs(by_5 / by_3 - 1) < 0.01) is (model != "lstm")


def test_fcns_traffic_both_ways_is_batchcrypts() -> None:
    both_ways = 2 * traffic_mb("fcn")["ESAFL"]
    assert both_ways > traffic_mb("fcn")["BatchCrypt"]

"""BatchCrypt's Figures 7 to 9 and 11 and Table 4, out of costs that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flhe.sim.papers.convergence import iterations
from flhe.sim.tables import batchcrypt_rounds
from flhe.sim.tables.batchcrypt_paper import (
    COHORT,
    ITERATIONS,
    MODELS,
    PLAIN_MB,
    iteration_s,
    line,
    traffic_mb,
)
from flhe.sim.tables.batchcrypt_round import AGGREGATION, MODES, steps
from flhe.sim.tables.batchcrypt_rounds import ENCRYPTED, NAMES, paper_usd
from flhe.sim.tables.learned import VALUES
from flhe.sim.tables.phase_costs import BATCHCRYPT_2048, PHE, PHE_BATCHED, PLAIN
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.rounds import PARTS, TOTAL, row
from flhe.sim.tables.section import Found, Plan, Section

QUICK, FULL = Plan(quick=True), Plan(quick=False)
PLANS = pytest.mark.parametrize("plan", [QUICK, FULL], ids=["quick", "full"])
A_VALUE = {PHE: (1e-2, 516.0), PHE_BATCHED: (1e-4, 5.5), PLAIN: (1e-9, 4.0)}
"""Seconds and bytes of a value; of everybody else 1e-6 and 5.5."""


def made_up(plan: Plan) -> dict[str, Any]:
    """What `steps` would leave."""
    found: dict[str, Any] = {}
    for step in steps(plan):
        if step.key.startswith("training"):
            found[step.key] = {"seconds_per_batch": 0.2, "batch": 128, "parameters": 1}
            continue
        [values] = [v for v in VALUES.values() if f"-{v}-" in step.key]
        found[step.key] = {}
        for name in MODES:
            seconds, nbytes = A_VALUE.get(name, (1e-6, 5.5))
            mark = "sampled" if name in (PHE, PHE_BATCHED) else "measured"
            phases = {p: [seconds * values, mark] for p in ("encrypt", "add", "decrypt")}
            found[step.key][name] = {**phases, "bytes": [nbytes * values, "counted"]}
    return found


def of(result: Result, model: str, who: str, what: str, *, paper: bool = False) -> Entry:
    """The one entry of that name."""
    [entry] = [
        e
        for e in result.entries
        if (e.row, e.who, e.what, e.group == "paper") == (row(model), who, what, paper)
    ]
    return entry


def all_there(sections: Sequence[Section], plan: Plan, found: Found) -> dict[str, Result]:
    """Results of sections by name; each has all models, those of the paper too, in order."""
    results = [r for section in sections for r in section.report(plan, found)]
    for result in results:
        rows = [e.row for e in result.entries]
        assert rows == sorted(rows, key=[row(model) for model in MODELS].index)
        for model in MODELS:
            groups = {e.group for e in result.entries if e.row == row(model)}
            assert groups >= {"ours", "paper"}
        assert (result.notes[-1].startswith("A quick run")) is plan.quick
    return {result.name: result for result in results}


SECTIONS = [s for s in batchcrypt_rounds.SECTIONS if s.steps is steps]


@PLANS
def test_everybody_is_there_and_parts_add_up(plan: Plan) -> None:
    results = all_there(SECTIONS, plan, made_up(plan))
    assert set(results) == {
        f"batchcrypt-{x}" for x in ("table-4", *map("figure-{}".format, "789"))
    } | {"batchcrypt-figure-11"}
    for model in MODELS:
        for name in ENCRYPTED:
            parts = [of(results["batchcrypt-figure-7"], model, name, part) for part in PARTS]
            total = of(results["batchcrypt-figure-7"], model, name, TOTAL).number
            assert sum(p.number.value for p in parts) == pytest.approx(total.value)
            assert (parts[0].number.mark, total.mark) == ("measured", "projected")
            adding = of(results["batchcrypt-figure-7"], model, name, AGGREGATION).number
            encrypting = of(results["batchcrypt-figure-7"], model, name, "encryption").number
            assert adding.value == pytest.approx(COHORT * encrypting.value)
        for name in NAMES:
            assert of(results["batchcrypt-table-4"], model, name, "time").number.mark == "projected"
            assert of(results["batchcrypt-figure-11"], model, name, "total").number.value > 0


def test_a_quick_run_measures_one_model_and_says_so() -> None:
    assert sum(step.key.startswith("costs") for step in steps(QUICK)) == 1
    assert sum(step.key.startswith("costs") for step in steps(FULL)) == 3
    quick, full = (batchcrypt_rounds.report_8(plan, made_up(plan))[0] for plan in (QUICK, FULL))
    for model in MODELS:
        a, b = (of(result, model, BATCHCRYPT_2048, "traffic").number for result in (quick, full))
        assert a.value == pytest.approx(b.value)
        assert b.mark == "counted"
        assert a.mark == ("counted" if model == "fcn" else "sampled")


def test_ratios_are_each_of_their_own() -> None:
    [figure] = batchcrypt_rounds.report_7(FULL, made_up(FULL))
    for model, faster in zip(MODELS, (23.3, 70.8, 92.8), strict=True):
        mine, theirs = f"{TOTAL}, to {BATCHCRYPT_2048}", f"{TOTAL}, to BatchCrypt"
        assert of(figure, model, PHE, mine).number.value > 1
        assert of(figure, model, BATCHCRYPT_2048, mine).number.value == 1
        told = of(figure, model, "FATE", theirs, paper=True).number
        assert (told.value, told.mark) == (pytest.approx(faster), "published")
        assert not [e for e in figure.entries if e.what == theirs and e.group != "paper"]


def test_plain_traffic_is_the_papers() -> None:
    """8 bytes a value, nine clients: so the paper's megabytes are of 2^20 bytes, and of all clients."""
    [figure] = batchcrypt_rounds.report_9(FULL, made_up(FULL))
    for model in MODELS:
        ours = of(figure, model, PLAIN, "traffic").number.value
        assert ours == pytest.approx(PLAIN_MB[model], rel=2e-3)


def test_table_4_is_an_iteration_by_the_papers_iterations() -> None:
    found = made_up(FULL)
    [figure], [table] = (
        r(FULL, found) for r in (batchcrypt_rounds.report_7, batchcrypt_rounds.report_table_4)
    )
    [traffic] = batchcrypt_rounds.report_8(FULL, found)
    for name, epochs in ((PHE, 20), (BATCHCRYPT_2048, 23)):
        rounds = epochs * ITERATIONS["lstm"]
        hours = of(table, "lstm", name, "time").number.value
        assert hours * 3600 == pytest.approx(rounds * of(figure, "lstm", name, TOTAL).number.value)
        gigabytes = of(table, "lstm", name, "traffic").number.value
        each = of(traffic, "lstm", name, "traffic").number.value
        assert gigabytes * 1024 == pytest.approx(rounds * each)


def test_a_bill_is_machines_and_what_leaves_them() -> None:
    found = made_up(FULL)
    [bill], [table] = (
        r(FULL, found) for r in (batchcrypt_rounds.report_11, batchcrypt_rounds.report_table_4)
    )
    hours = of(table, "fcn", PHE, "time").number.value
    assert of(bill, "fcn", PHE, "instances").number.value == pytest.approx(8.758 * hours)
    # Nine clients' egress is 0.048 USD on average, the server's 0.042.
    gigabytes = of(table, "fcn", PHE, "traffic").number.value
    assert of(bill, "fcn", PHE, "network").number.value == pytest.approx(
        0.045 * gigabytes, rel=2e-3
    )
    assert paper_usd("fcn", "FATE")[0] == pytest.approx(8.758 * 122.5)
    for model, saved in zip(MODELS, (97.4, 98.6, 98.8), strict=True):  # Sec. 6.5
        stock, batched = (paper_usd(model, mode)[1] for mode in ("FATE", "BatchCrypt"))
        assert 100 * (1 - batched / stock) == pytest.approx(saved, abs=0.06)


# --- what notes say of the paper's numbers ---


def test_iterations_of_an_epoch_are_those_that_fates_hours_imply() -> None:
    for model in MODELS:
        said = line("BatchCrypt", model, "FATE")
        implied = said.hours * 3600 / (said.epochs * iteration_s(model)["FATE"])
        assert implied == pytest.approx(ITERATIONS[model], abs=0.1)
        # BatchCrypt's hours agree.
        batch = line("BatchCrypt", model, "BatchCrypt")
        rounds = batch.epochs * ITERATIONS[model]
        assert batch.hours * 3600 / rounds == pytest.approx(
            iteration_s(model)["BatchCrypt"], rel=5e-3
        )
    assert iterations(60_000, COHORT, 128) == 53
    assert iterations(50_000, COHORT, 128) == 44


def test_the_papers_gigabytes_are_of_other_iterations_than_its_hours() -> None:
    for model, tenths, plain in (("fcn", 1, 1.27), ("alexnet", 10, 90), ("lstm", 10, 90)):
        for mode, factor in (("FATE", tenths), ("BatchCrypt", tenths), ("plain", plain)):
            said = line("BatchCrypt", model, mode)
            whole = traffic_mb(model)[mode] / 1024 * said.epochs * ITERATIONS[model]
            assert whole / said.traffic_gb == pytest.approx(factor, rel=0.04)


def test_the_paper_has_two_durations_of_plain() -> None:
    by_table = [
        line("BatchCrypt", m, "plain").hours
        * 3600
        / (line("BatchCrypt", m, "plain").epochs * ITERATIONS[m])
        for m in MODELS
    ]
    assert by_table == pytest.approx([5.5, 9.8, 12.7], rel=0.01)
    assert [iteration_s(m)["plain"] for m in MODELS] == pytest.approx([2.2, 20, 57], rel=0.01)


def test_fates_numbers_are_longer_than_ciphertexts() -> None:
    each = [traffic_mb(m)["FATE"] * 2**20 / (2 * COHORT * VALUES[m]) for m in MODELS]
    assert (min(each), max(each)) == pytest.approx((625, 654), abs=1)

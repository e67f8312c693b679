"""BatchCrypt's and ESAFL's iterations and training to the end, out of costs that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from flhe_lab.tables.batchcrypt_paper import (
    COHORT,
    ITERATIONS,
    MODELS,
    PLAIN_MB,
    esafl_traffic_mb,
    iteration_s,
    line,
    traffic_mb,
)
from flhe_lab.tables.batchcrypt_rounds import (
    AGGREGATION,
    ENCRYPTED,
    FILLS,
    MODES,
    ROUNDS,
    TO_ESAFL,
    paper_usd,
    steps,
)
from flhe_lab.tables.learned import VALUES
from flhe_lab.tables.phase_costs import (
    BATCHCRYPT_2048,
    ESAFL,
    ESAFL_NARROW,
    PHE,
    PHE_BATCHED,
    PLAIN,
)
from flhe_lab.tables.result import Result
from flhe_lab.tables.rounds import PARTS, TOTAL, row
from flhe_lab.tables.runner import steps_of
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import FULL, PLANS, QUICK, of, result

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


def full(name: str) -> Result:
    return result(name, FULL, made_up(FULL))


@PLANS
@pytest.mark.parametrize("name", FILLS)
def test_all_models_are_there_in_order_the_papers_too(plan: Plan, name: str) -> None:
    table = result(name, plan, made_up(plan))
    rows = [e.row for e in table.entries]
    assert rows == sorted(rows, key=[row(model) for model in MODELS].index)
    for model in MODELS:
        assert {e.group for e in table.entries if e.row == row(model)} >= {"ours", "paper"}
    assert table.notes[-1].startswith("A quick run measures FCN") is plan.quick


@PLANS
@pytest.mark.parametrize(
    ("name", "who"), [("batchcrypt-figure-7", ENCRYPTED), ("esafl-figure-4", TO_ESAFL)]
)
def test_parts_of_an_iteration_add_up(plan: Plan, name: str, who: tuple[str, ...]) -> None:
    table = result(name, plan, made_up(plan))
    for model in MODELS:
        for each in who:
            parts = [of(table, model, each, part).number for part in PARTS]
            total = of(table, model, each, TOTAL).number
            assert sum(p.value for p in parts) == pytest.approx(total.value)
            assert (parts[0].mark, total.mark) == ("measured", "projected")
            adding = of(table, model, each, AGGREGATION).number.value
            assert adding == pytest.approx(
                COHORT * of(table, model, each, "encryption").number.value
            )


@PLANS
def test_both_papers_share_their_measurements(plan: Plan) -> None:
    assert len(steps_of(list(ROUNDS.values()), plan)) == len(steps(plan))


def test_a_quick_run_measures_one_model_and_says_so() -> None:
    assert sum(step.key.startswith("costs") for step in steps(QUICK)) == 1
    assert sum(step.key.startswith("costs") for step in steps(FULL)) == 3
    quick = result("batchcrypt-figure-8", QUICK, made_up(QUICK))
    for model in MODELS:
        a, b = (
            of(table, model, BATCHCRYPT_2048, "traffic").number
            for table in (quick, full("batchcrypt-figure-8"))
        )
        assert a.value == pytest.approx(b.value)
        assert b.mark == "counted"
        assert a.mark == ("counted" if model == "fcn" else "sampled")


def test_ratios_are_each_of_their_own() -> None:
    figure, table, esafl = map(full, ("batchcrypt-figure-7", "esafl-table-5", "esafl-figure-5"))
    for model, faster in zip(MODELS, (23.3, 70.8, 92.8), strict=True):
        mine, theirs = f"{TOTAL}, to {BATCHCRYPT_2048}", f"{TOTAL}, to BatchCrypt"
        assert of(figure, model, PHE, mine).number.value > 1
        assert of(figure, model, BATCHCRYPT_2048, mine).number.value == 1
        told = of(figure, model, "FATE", theirs, paper=True).number
        assert (told.value, told.mark) == (pytest.approx(faster), "published")
        assert not [e for e in figure.entries if e.what == theirs and e.group != "paper"]
    for model, faster, smaller in zip(MODELS, (204, 930, 953), (68, 103, 112), strict=True):
        told = of(table, model, "FATE", "time, to ESAFL", paper=True).number
        assert told.value == pytest.approx(faster, rel=2e-3)
        size = of(esafl, model, "FATE", "traffic, to ESAFL", paper=True).number.value
        assert size == pytest.approx(smaller, rel=0.04)
        assert of(table, model, ESAFL, "time, to ESAFL").number.value == 1


def test_plain_traffic_is_the_papers() -> None:
    """8 bytes a value, nine clients: so its megabytes are of 2^20 bytes, and of all clients."""
    for model in MODELS:
        ours = of(full("batchcrypt-figure-9"), model, PLAIN, "traffic").number.value
        assert ours == pytest.approx(PLAIN_MB[model], rel=2e-3)


@pytest.mark.parametrize(
    ("paper", "model", "epochs"),
    [
        ("batchcrypt", "lstm", {PHE: 20, BATCHCRYPT_2048: 23}),
        ("esafl", "alexnet", {PHE: 285, PHE_BATCHED: 279, ESAFL: 255, ESAFL_NARROW: 255}),
    ],
)
def test_training_is_an_iteration_by_the_epochs_of_whom_each_stands_for(
    paper: str, model: str, epochs: dict[str, int]
) -> None:
    names = ("batchcrypt-figure-7", "batchcrypt-figure-8", "batchcrypt-table-4")
    if paper == "esafl":
        names = ("esafl-figure-4", "esafl-figure-5", "esafl-table-5")
    figure, traffic, table = map(full, names)
    for name, count in epochs.items():
        rounds = count * ITERATIONS[model]
        hours = of(table, model, name, "time").number.value
        assert hours * 3600 == pytest.approx(rounds * of(figure, model, name, TOTAL).number.value)
        gigabytes = of(table, model, name, "traffic").number.value
        each = of(traffic, model, name, "traffic").number.value
        assert gigabytes * 1024 == pytest.approx(rounds * each)


def test_a_bill_is_machines_and_what_leaves_them() -> None:
    bill, table = map(full, ("batchcrypt-figure-11", "batchcrypt-table-4"))
    hours = of(table, "fcn", PHE, "time").number.value
    assert of(bill, "fcn", PHE, "instances").number.value == pytest.approx(8.758 * hours)
    # Nine clients' egress is 0.048 USD on average, the server's 0.042.
    gigabytes = of(table, "fcn", PHE, "traffic").number.value
    network = of(bill, "fcn", PHE, "network").number.value
    assert network == pytest.approx(0.045 * gigabytes, rel=2e-3)
    assert paper_usd("fcn", "FATE")[0] == pytest.approx(8.758 * 122.5)
    for model, saved in zip(MODELS, (97.4, 98.6, 98.8), strict=True):  # Sec. 6.5
        stock, batched = (paper_usd(model, mode)[1] for mode in ("FATE", "BatchCrypt"))
        assert 100 * (1 - batched / stock) == pytest.approx(saved, abs=0.06)


# --- what notes say of the papers' numbers ---


def test_iterations_of_an_epoch_are_those_that_hours_imply() -> None:
    for model in MODELS:
        for mode, near in (("FATE", 2e-3), ("BatchCrypt", 5e-3)):
            said = line("BatchCrypt", model, mode)
            implied = said.hours * 3600 / (said.epochs * iteration_s(model)[mode])
            assert implied == pytest.approx(ITERATIONS[model], rel=near)
    plain = [iteration_s(model)["plain"] for model in MODELS]
    assert plain == pytest.approx([2.2, 20, 57], rel=0.01)


def test_the_papers_gigabytes_are_of_other_iterations_than_its_hours() -> None:
    for model, tenths, plain in (("fcn", 1, 1.27), ("alexnet", 10, 90), ("lstm", 10, 90)):
        for mode, factor in (("FATE", tenths), ("BatchCrypt", tenths), ("plain", plain)):
            said = line("BatchCrypt", model, mode)
            whole = traffic_mb(model)[mode] / 1024 * said.epochs * ITERATIONS[model]
            assert whole / said.traffic_gb == pytest.approx(factor, rel=0.04)
    for model, clients in zip(MODELS, (COHORT, 1, 1), strict=True):
        for mode in ("ESAFL", "plain"):
            said = line("ESAFL", model, mode)
            one = esafl_traffic_mb(model)[mode] / COHORT / 1024 * said.epochs * ITERATIONS[model]
            assert said.traffic_gb / one == pytest.approx(clients, rel=0.12)


def test_fates_numbers_are_longer_than_ciphertexts() -> None:
    each = [traffic_mb(m)["FATE"] * 2**20 / (2 * COHORT * VALUES[m]) for m in MODELS]
    assert (min(each), max(each)) == pytest.approx((625, 654), abs=1)

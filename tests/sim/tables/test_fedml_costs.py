"""FedML-HE's Tables 4, 6, 7, 8: what is in them, and by which laws."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flhe_lab.bench.fedml_models import CNN, MB, TABLE_7, VIT
from flhe_lab.bench.fedml_ways import WEIGHTS, plain, updates_of
from flhe_lab.tables import fedml_measure
from flhe_lab.tables.fedml_costs import (
    SECTIONS,
    SHARES_7,
    model_step,
    selective,
    selective_of,
    share_step,
)
from flhe_lab.tables.fedml_measure import (
    FLARE,
    OURS,
    PLAIN,
    TENSEAL,
    Aggregation,
    ours,
    read,
    reduced,
    reduced_step,
    step,
    tenseals,
    ways_of,
)
from flhe_lab.tables.fedml_parameter_table import parameter_steps
from flhe_lab.tables.fedml_parameters import BUDGET, Ckks, accuracy, cost_of_setups, setups
from flhe_lab.tables.fedml_published import LLAMA, MODELS, RESNET_50, TABLE_6, TABLE_8
from flhe_lab.tables.marked import counted, measured
from flhe_lab.tables.result import Result, to_markdown
from flhe_lab.tables.runner import steps_of
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import FULL, QUICK
from tests.sim.tables.made_up import quietly as say

pytest.importorskip("tenseal")
pytest.importorskip("torch")


def turns(values: int, shares: tuple[float, ...]) -> dict[str, Any]:
    """What a step would give of a machine that takes a second a value, more where more is encrypted."""
    names = {PLAIN: 0.1, FLARE: 20.0}
    for share in shares:
        names[ours(share)] = 1 + 4 * share
        if share:
            names[tenseals(share)] = 1 + 29 * share
    return {
        name: {
            "encrypt": cost * values,
            "aggregate": cost * values / 2,
            "decrypt": cost * values / 4,
            "up": round(4 * cost * values),
            "down": round(2 * cost * values),
            "values": values,
        }
        for name, cost in names.items()
    }


def everything(plan: Plan) -> dict[str, Any]:
    """Results of all steps, of turns made up and of parameters really measured, on very little."""
    longest = fedml_measure.longest(plan)
    found = {s.key: turns(min(m.values, longest), (0, 0.1, 0.5, 1)) for m in MODELS
             for s in [model_step(m, plan)]}  # fmt: skip
    found[share_step(plan).key] = turns(longest, SHARES_7)
    costs, learned = parameter_steps(plan)
    found[costs.key] = cost_of_setups(100, 1, say)
    encrypted = [{"ring": 8192, "scale": 14, "best": 0.75}]
    found[learned.key] = {"clear": 0.8, "rounds": 3, "encrypted": encrypted}
    assert set(found) == {s.key for s in steps_of(SECTIONS, plan)}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return everything(QUICK)


@pytest.fixture(scope="module")
def results(found: dict[str, Any]) -> dict[str, Result]:
    return {r.name: r for section in SECTIONS for r in section.report(QUICK, found)}


def of(result: Result, **wanted: str) -> dict[tuple[str, str], float]:
    """(row, who) -> value, of entries with these fields."""
    return {
        (e.row, e.who): e.number.value
        for e in result.entries
        if all(getattr(e, name) == value for name, value in wanted.items())
    }


# --- what the paper says ---


def test_the_papers_ratios_come_out() -> None:
    said = (240.83, 10.10, 17.05, 17.50, 16.70, 16.24, 16.45, 16.61, 16.60, 16.58, 16.61, 16.62)
    for model, ratio in zip(MODELS, said, strict=False):
        assert model.he_bytes / model.plain_bytes == pytest.approx(ratio, rel=5e-3)
    times = (4.32, 6.34, 6.96, 5.39)
    for model, ratio in zip(MODELS[-4:], times, strict=True):
        assert model.he_s / model.plain_s == pytest.approx(ratio, rel=5e-3)
    assert LLAMA.he_bytes / LLAMA.plain_bytes == pytest.approx(30.92, rel=5e-4)
    # Two bytes a value, in GB of 10^9; all others have four, of 2^20.
    assert LLAMA.plain_bytes * 1e9 / (1 << 30) / LLAMA.values == pytest.approx(2, rel=0.01)
    assert RESNET_50.values == 25_557_032
    assert len(TABLE_6) == 15
    assert {row.seconds for row in TABLE_6 if row.batch == 4096} == {
        1.837,
        1.819,
        1.886,
        1.998,
        1.926,
    }


def test_the_papers_ciphertexts_have_one_size_at_every_batch() -> None:
    sizes = {row.nbytes / -(-CNN.values // row.batch) / 1024 for row in TABLE_6}
    assert all(256 < size < 260 for size in sizes)


# --- turns ---


def test_a_step_measures_everybody_and_projects_what_is_longer() -> None:
    taken = step(2_000, (0.0, 0.1, 1.0), QUICK)
    found = json.loads(json.dumps(taken.work(say)))
    whole = read(found, 2_000)
    assert list(whole) == [PLAIN, ours(0), ours(0.1), tenseals(0.1), OURS, TENSEAL, FLARE]
    assert whole[PLAIN].upload_bytes == counted(8_000)
    assert {cost.total_s.mark for cost in whole.values()} == {"measured"}
    assert whole[OURS].upload_bytes.value < whole[TENSEAL].upload_bytes.value
    longer = read(found, 6_000)[OURS]
    assert longer.total_s.mark == longer.upload_bytes.mark == "sampled"
    assert longer.total_s.value == pytest.approx(3 * whole[OURS].total_s.value)
    assert whole[OURS].cost().work_s(3).value < whole[OURS].total_s.value


def test_models_beyond_the_longest_share_a_step() -> None:
    assert model_step(VIT, FULL).key == model_step(LLAMA, FULL).key != model_step(CNN, FULL).key
    assert model_step(CNN, FULL).key != model_step(CNN, QUICK).key


def test_what_is_not_sent_costs_no_bytes_and_the_mean_is_checked() -> None:
    way = reduced(plain, 1_000, 100)(updates_of(1_000))
    for _ in range(2):  # nothing piles up between turns
        way.turn()
        assert way.known_sizes() == (400, 400)
        assert (way.checked() or 1) < 1e-6
    inner = reduced(ways_of(100, (1.0,))[OURS], 1_000, 100)(updates_of(1_000))
    inner.turn()
    assert (inner.checked() or 1) < 5e-5
    assert reduced_step(1_600_000, 160_000, QUICK).key == "fedml-reduced-100000-10000-quick"


# --- tables ---


def test_nobody_is_missing(results: dict[str, Result]) -> None:
    assert set(results) == {
        *("fedml-table-4", "fedml-figure-2", "fedml-figure-7", "fedml-table-6", "fedml-table-7"),
        *("fedml-selective", "fedml-table-8"),
    }
    upload = of(results["fedml-table-4"], what="upload", group="ours")
    assert len(upload) == 2 * len(MODELS)
    paper = of(results["fedml-table-4"], what="upload", group="paper")
    assert len(paper) == 2 * len(MODELS)
    frameworks = results["fedml-table-8"]
    told = sorted(of(frameworks, what="aggregation", group="paper").values())
    assert told == sorted(row.seconds for row in TABLE_8)
    assert {e.row for e in frameworks.entries if e.group != "paper"} == {
        *("plain", "ours", "ours 10%", "TenSEAL", "TenSEAL 10%", "FLARE"),
    }
    for result in results.values():
        assert to_markdown(result)
        assert result.notes


def test_ratios_are_to_plain_of_the_same_source(results: dict[str, Result]) -> None:
    ratio = of(results["fedml-table-4"], what="aggregation, to plain")
    assert ratio[f"Vision Transformer ({VIT.values:,})", OURS] == pytest.approx(50)
    he = ratio[f"Vision Transformer ({VIT.values:,})", "FedML-HE (PALISADE)"]
    assert he == pytest.approx(VIT.he_s / VIT.plain_s)


def test_marks_say_what_was_run(results: dict[str, Result]) -> None:
    longest = fedml_measure.longest(QUICK)
    for e in results["fedml-figure-2"].entries:
        assert e.x is not None
        if e.group != "paper":
            firm = {"measured", "counted"} if e.x <= longest else {"sampled"}
            assert e.number.mark in firm


def test_more_encrypted_is_more(results: dict[str, Result]) -> None:
    rows = [f"{s.ratio:.0%}" for s in TABLE_7]
    for what in ("aggregation", "upload"):
        found = of(results["fedml-table-7"], what=what)
        for who in (OURS, TENSEAL, "FedML-HE (PALISADE)"):
            values = [found[row, who] for row in rows]
            assert values == sorted(values)
    assert found["100%", "FedML-HE (PALISADE)"] == pytest.approx(TABLE_7[-1].nbytes / MB)


def test_what_a_tenth_takes_off(results: dict[str, Result], found: dict[str, Any]) -> None:
    def cost(seconds: float, nbytes: float) -> Aggregation:
        none, size = measured(0.0), counted(nbytes)
        return Aggregation("x", "ours", measured(seconds), none, none, size, size)

    ratio = selective(cost(1, 100), cost(2, 150), cost(9, 1100))
    assert ratio.whole_s == measured(4.5)
    assert ratio.beyond_s == measured(8)
    assert ratio.whole_bytes == counted(1100 / 150)
    assert ratio.beyond_bytes == counted(20)
    times = of(results["fedml-selective"], what="time")
    assert times["CNN, all of it", OURS] == pytest.approx(5 / 1.4)
    assert times["CNN, beyond", OURS] == pytest.approx(10)
    assert times["ViT, beyond", "FedML-HE (PALISADE)"] == pytest.approx(1 / 0.1386, rel=1e-3)
    assert set(selective_of(QUICK, found)) == {
        (model, who) for model in ("CNN", "ViT") for who in (OURS, TENSEAL)
    }


# --- Table 6 ---


def test_parameters_keep_within_what_is_secure() -> None:
    for ring, budget in BUDGET.items():
        for weighs in (True, False):
            ckks = Ckks.of(ring, 14, server_weighs=weighs)
            assert ckks is not None
            assert sum(ckks.moduli) <= budget
            assert len(ckks.moduli) == (3 if weighs else 2)
    assert Ckks.of(2048, 40, server_weighs=False) is None
    assert Ckks.of(2048, 20, server_weighs=True) is None
    assert Ckks.of(4096, 52, server_weighs=True) is None


@pytest.mark.parametrize("weighs", [True, False])
def test_a_larger_scale_is_nearer_to_the_mean(weighs: bool) -> None:
    updates = updates_of(3_000)
    exact = sum(w * u.astype(np.float64) for w, u in zip(WEIGHTS, updates, strict=True))
    errors = []
    for scale in (20, 33):
        ckks = Ckks.of(4096, scale, server_weighs=weighs)
        assert ckks is not None
        mean = ckks.mean(updates, 2048)
        errors.append(float(np.abs(mean.values - exact).max()))
        assert mean.seconds > 0
    assert 1e-3 < errors[0] < 0.1
    assert errors[1] < 1e-5
    half = ckks.mean([u[:2000] for u in updates], 1000)
    assert half.nbytes == pytest.approx(ckks.mean(updates, 2000).nbytes, rel=0.02)


def test_setups_that_there_are_not_are_told(results: dict[str, Result]) -> None:
    table = results["fedml-table-6"]
    uploads = of(table, what="upload", group="peer")
    rows = len(setups()) * 5
    refused = table.notes[1].count("server weighs,") + table.notes[1].count("clients weigh,")
    assert len(uploads) == rows - refused
    assert refused == 7
    assert ("52 bits", "n = 4096, 2048 values, server weighs") not in uploads
    changes = of(table, what="test accuracy", group="peer")
    assert changes["14 bits", "n = 8192, 4096 values"] == pytest.approx(-5)
    papers = of(table, what="test accuracy", group="paper")
    assert papers["14 bits", "4096 values"] == -1.85


def test_learning_goes_through_ciphertexts() -> None:
    found = accuracy((4096,), (33,), 1, say, examples=20)
    (one,) = found["encrypted"]
    assert (one["ring"], one["scale"]) == (4096, 33)
    assert one["best"] == pytest.approx(found["clear"], abs=0.02)
    assert 0 < found["clear"] < 1

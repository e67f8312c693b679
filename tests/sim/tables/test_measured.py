"""What tables are made of: every measurement runs, on little, and is read as it should be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe_lab.bench.contender import Setting, part_of
from flhe_lab.bench.secure_sums import FLOWERS, SECAGG
from flhe_lab.papers import curves
from flhe_lab.papers.packing import TABLE_3
from flhe_lab.tables import (
    batchcrypt,
    evaluation,
    fedml_costs,
    fedml_map,
    fedml_measure,
    fedml_parameters,
    fedml_threshold,
    flashe_masks,
    flashe_rounds,
    phase_costs,
    sash_times,
)
from flhe_lab.tables.chart import draw
from flhe_lab.tables.esafl_packing import AS_COUNTED, AS_WRITTEN, counts, errors
from flhe_lab.tables.flashe_masks import crossing
from flhe_lab.tables.result import counted
from flhe_lab.tables.table import Plan

if not all(map(find_spec, ("phe", "gmpy2", "tenseal", "torchvision"))):
    pytest.skip("what is measured is not installed", allow_module_level=True)

QUICK, FULL = Plan(quick=True), Plan(quick=False)


def say(_what: str) -> None:
    """Nobody listens."""


def stored(found: Any) -> Any:
    """As it is read from disk."""
    return json.loads(json.dumps(found))


def test_costs_are_of_one_run_and_keep_their_marks() -> None:
    names = ("plain", "FLASHE", "python-paillier")
    makes = {name: phase_costs.WHO[name] for name in names}
    makes["plain"] = part_of(makes["plain"], 200)
    costs = phase_costs.read(stored(phase_costs.measure(800, 4, makes, 1, say)))
    assert [cost.group for cost in costs.values()] == ["ours", "ours", "peer"]
    marks = [(cost.encrypt_s.mark, cost.upload_bytes.mark) for cost in costs.values()]
    assert marks == [("sampled", "sampled"), ("measured", "counted"), ("sampled", "counted")]
    assert costs["plain"].upload_bytes.value == 3200


# --- BatchCrypt, ESAFL ---


def test_keys_that_are_refused_have_no_batches() -> None:
    found = stored(batchcrypt.measure_keys(300, 300, 1, say, (512, 2048)))
    phe, whole = f"{phase_costs.PHE}|2048", f"{batchcrypt.WHOLE}|2048"
    assert list(found) == [f"{phase_costs.PHE}|512", phe, whole]
    costs = phase_costs.read(found)
    assert costs[phe].upload_bytes.value == 300 * 516
    assert 3 * 512 < costs[whole].upload_bytes.value < 4 * 512 + 300  # 106 of two; tags and counts
    assert (costs[phe].group, costs[whole].group) == ("peer", "ours")


def test_narrower_values_take_fewer_ciphertexts() -> None:
    found = phase_costs.read(stored(batchcrypt.measure_widths(700, 700, 1, say)))
    counts = {bits: batchcrypt.slots(bits).batches(700) for bits in batchcrypt.BATCH}
    assert found[phase_costs.PHE_BATCHED].upload_bytes == counted(512 * counts[16])
    for bits, count in counts.items():
        size = found[f"{bits} bits"].upload_bytes.value
        assert 0 < size - count * 512 < 512 + 300  # tags and counts


def test_what_is_counted_is_what_is_encrypted() -> None:
    tiny = TABLE_3[0]._replace(values=900)
    rows = {(row["encoding"], row["packed"]): row for row in errors(tiny, 16, 1, say, 64)}
    same = counts(900, 16, 64)
    assert [some for some, _ in same.values()] == [29, 2, 15, 1, 1, 1, 1, 1]
    for way, row in rows.items():
        # A mean absolute deviation of nine roundings, or of nine times n of them.
        unit = {AS_WRITTEN: 9 * math.sqrt(2)}.get(way[0], 1) * 2**-15
        roundings = {AS_COUNTED: 64, AS_WRITTEN: 32}.get(way[0], 1)
        deviation = unit * math.sqrt(9 * roundings / 12)
        assert row["error"] == pytest.approx(math.sqrt(2 / math.pi) * deviation, rel=0.5)
    measured = [row["measured"] for row in rows.values()]
    assert measured == [32, 32 * 21, 64, 900, 900, 900]
    assert same["ours, goldilocks-4096", True][1] == 450 * 8  # two values in eight bytes


# --- FedML-HE ---


def test_an_aggregation_is_measured_and_projected_where_it_is_longer_or_a_share() -> None:
    shares = (0.0, 0.1, 1.0)
    taken = fedml_measure.step(2_000, shares, QUICK)
    found = {taken.key: stored(taken.work(say))}
    whole = fedml_measure.costs(2_000, shares, QUICK, found)
    ours, tenseals = fedml_measure.ours, fedml_measure.tenseals
    assert list(whole) == [
        *("plain", ours(0), ours(0.1), ours(1)),
        *(fedml_measure.TENSEAL, fedml_measure.FLARE, tenseals(0.1)),
    ]
    assert whole["plain"].upload_bytes == counted(8_000)
    marks = {name: cost.work_s(fedml_measure.COHORT).mark for name, cost in whole.items()}
    assert marks.pop(tenseals(0.1)) == "sampled"
    assert set(marks.values()) == {"measured"}
    tenth, everything = whole[tenseals(0.1)], whole[tenseals(1)].upload_bytes.value
    assert tenth.upload_bytes.value == pytest.approx(0.1 * everything + 0.9 * 8_000)
    assert (tenth.who, tenth.group) == (tenseals(0.1), "peer")
    assert whole[ours(1)].upload_bytes.value < everything
    longest = {fedml_measure.step(10**7, shares, QUICK).key: found[taken.key]}
    longer = fedml_measure.costs(10**7, shares, QUICK, longest)[ours(1)]
    assert longer.add_s.mark == longer.upload_bytes.mark == "sampled"
    factor = 10**7 / fedml_measure.longest(QUICK)
    assert longer.add_s.value == pytest.approx(factor * whole[ours(1)].add_s.value)


def test_a_larger_scale_is_nearer_to_the_mean() -> None:
    found = stored(fedml_parameters.cost_of_setups(100, 1, say))
    assert len(found) == len(fedml_measure.TABLE_6)
    errors_by = {row["scale"]: row["error"] for row in found}
    assert errors_by[20] > 100 * errors_by[33] > errors_by[40]
    assert errors_by[33] < 1e-5
    assert all(row["seconds"] > 0 for row in found)


def test_primes_keep_within_what_is_secure() -> None:
    primes, budget = fedml_parameters.primes, fedml_parameters.BUDGET
    for ring, scale in ((2048, 14), (2048, 33), (4096, 14), (4096, 52), (8192, 14), (8192, 52)):
        assert sum(primes(ring, scale)) <= budget[ring]
        assert fedml_parameters.cipher_of(ring, scale).slots == ring // 2  # TenSEAL takes them


def test_learning_goes_through_ciphertexts() -> None:
    found = fedml_parameters.accuracy((1024, 2048), (33, 52), 1, say, examples=20)
    assert [each["ring"] for each in found["encrypted"]] == [2048, 4096, 4096]
    for each in found["encrypted"]:
        assert each["best"] == pytest.approx(found["clear"], abs=0.02)
    assert 0 < found["clear"] < 1


def test_a_shared_key_opens_the_same_mean_by_one_more_message() -> None:
    found = stored(fedml_threshold.measure(300, 1, say))
    single, shared = found[fedml_threshold.SINGLE], found[fedml_threshold.THRESHOLD]
    assert max(row["error"] for row in found.values()) < 1 / 2**15  # no more than rounding
    assert shared["bytes"][0] > single["bytes"][0] > 0
    assert 0 < shared["answer"][0] < shared["bytes"][0]


def test_the_map_has_every_parameter_and_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (step,) = fedml_map.FIGURE_5.steps(QUICK)
    (figure,) = fedml_map.FIGURE_5.report(QUICK, {step.key: stored(step.work(say))})
    of = {(e.what, e.row): e.number.value for e in figure.entries}
    count = {layer: of["parameters", layer] for layer in fedml_map.LAYERS}
    assert sum(count.values()) == 15_826
    assert sum(of["part of the whole", layer] for layer in count) == pytest.approx(100)
    tops = sum(of["in the top tenth", layer] * n for layer, n in count.items()) / 15_826
    assert tops == pytest.approx(10, abs=0.02)
    draw(figure, tmp_path / "map.svg")
    assert "convolution 1" in (tmp_path / "map.svg").read_text()
    told = fedml_map.told_of({"one": np.array([1.0, 0.05]), "other": np.array([0.15, 0.3])})
    assert (told["low"], told["top"]) == (25, pytest.approx(100 / 1.5))


# --- FLASHE ---


def test_a_tenth_is_measured() -> None:
    found = stored(flashe_rounds.measure_tenth(3_000, 1, say))
    assert found["sent"] == 300 < found["union"]
    assert [name for name, row in found["rows"].items() if "down" in row] == list(found["rows"])[:2]


def test_masks_and_seconds_are_measured_at_each_rate() -> None:
    points = flashe_masks.measure_dropouts(500, 1, say, clients=(4, 9), rates=(0.0, 0.5))
    at = [(p["clients"], p["dropout"]) for p in points]
    assert at == [(4, 0.0), (4, 0.5), (9, 0.0), (9, 5 / 9)]
    assert all(seconds > 0 for found in points for seconds in found["seconds"].values())
    assert points[0]["masks"] == {"double": 4, "single": 5}
    assert points[2]["masks"] == {"double": 4, "single": 10}


@pytest.mark.parametrize(
    ("double", "single", "at"),
    [
        ((1, 2, 3, 4, 5), (4, 4, 4, 4, 4), 0.3),
        ((1, 2, 3, 4, 5), (3.5, 3.5, 3.5, 3.5, 3.5), 0.25),
        ((1, 9, 3, 4, 5), (4, 4, 4, 4.5, 4), 0.3 + 0.1 / 3),  # noise moves it little
        ((1, 1, 1, 1, 1), (2, 2, 2, 2, 2), None),
        ((2, 2, 2, 2, 2), (1, 1, 1, 1, 1), None),
    ],
)
def test_lines_cross_where_they_do(double: Any, single: Any, at: float | None) -> None:
    assert crossing((0.0, 0.1, 0.2, 0.3, 0.4), double, single) == (at and pytest.approx(at))


# --- SASH ---


def test_a_point_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sash_times, "HEADLINE", Setting(500, 10, 3))
    step = sash_times.ratio_step(QUICK)
    data = stored(step.work(say))
    assert set(data) == {"SASH", "SecAgg", FLOWERS}  # all are neighbours of all
    data[SECAGG] |= {"client": 10.0, "server": 30.0}
    data["SASH"] |= {"client": 1.0, "server": 1.0}
    ratio = sash_times.ratio_of(QUICK, {step.key: data}, SECAGG)
    assert (ratio.value, ratio.mark) == (20, "measured")
    for plan in (QUICK, FULL):
        (other,) = sash_times._steps(lambda _plan: [("", 0, Setting(50, 5, 1))])(plan)
        assert (FLOWERS in other.work(say)) == (plan == FULL)


def test_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sash_times, "INFLATED", 70)
    section = sash_times.SECTIONS[-1]
    (step,) = section.steps(QUICK)
    data = stored(step.work(say))
    (result,) = section.report(QUICK, {step.key: data})
    factors = {(e.row[:3], e.group): e.number for e in result.entries if e.unit == "x"}
    # 29 shares of 2048 elements, 14 in a polynomial, and 20 empty boxes; both ways.
    shares = 2 * (29 * 8 * -(-2048 // 14) + 49 * 28)
    assert shares < data["50"]["agreement"] < 1.1 * shares
    assert data["70"]["agreement"] < 1.2 * data["50"]["agreement"]
    for n in ("50", "70"):
        moved = data[n]["upload"] + data[n]["agreement"]
        assert factors[f"{n} ", "ours"] == counted(moved / 2e6)
    assert factors["70 ", "paper"].value == 2.06


# --- training ---


@pytest.mark.parametrize("model", ["fcn", "gru"])
def test_a_batch_is_trained_of_the_size_that_is_told(model: str) -> None:
    step = evaluation.training_step(model, QUICK)
    found = step.work(say)
    assert found["batch"] == evaluation.BATCH[model]
    assert round(found["parameters"], -4) == round(evaluation.VALUES[model], -4)
    of_a_batch = evaluation.batch_s(model, {step.key: found}, QUICK)
    assert of_a_batch.value == found["seconds_per_batch"] > 0


def test_training_is_of_the_model_that_the_paper_has() -> None:
    found = fedml_costs.train_resnet(2, 1, 32)
    assert (found["parameters"], found["batch"]) == (fedml_measure.RESNET_50.values, 2)


def test_other_settings_are_other_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    before = evaluation.curves_step("fcn", FULL).key
    told = curves.COMPARISONS["fcn"]
    other = replace(told, setting=replace(told.setting, rounds=told.setting.rounds + 1))
    monkeypatch.setitem(curves.COMPARISONS, "fcn", other)
    assert evaluation.curves_step("fcn", FULL).key != before

"""All tables at once: a quick run fills what a full one fills; notes say what is so of the papers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe_lab.tables import headlines, sash_times
from flhe_lab.tables.batchcrypt_rounds import (
    COHORT,
    ITERATIONS,
    MODELS,
    ROUNDS,
    iteration_s,
    line,
    paper_usd,
    steps,
    traffic_mb,
)
from flhe_lab.tables.catalog import sections
from flhe_lab.tables.fedml_costs import selective
from flhe_lab.tables.fedml_published import CNN, TABLE_6, TABLE_7
from flhe_lab.tables.fedml_published import MODELS as FEDML_MODELS
from flhe_lab.tables.flashe_rounds import PLAIN_BYTES, TABLE_2
from flhe_lab.tables.learned import NAMES, VALUES
from flhe_lab.tables.marked import counted, measured
from flhe_lab.tables.result import to_markdown
from flhe_lab.tables.runner import steps_of
from flhe_lab.tables.section import Plan, Section

QUICK, FULL = Plan(quick=True), Plan(quick=False)
FOLDER = Path(__file__).parents[3] / "docs" / "results" / "measured"
STORED = {path.stem: json.loads(path.read_text())["data"] for path in FOLDER.glob("*.json")}


def kind(key: str, *, loosely: bool = False) -> str:
    """A step's key without sizes, or without any number."""
    shorter = re.sub(r"(?<=-)\d{3,}(?=-|$)|-quick$", "", key)
    return re.sub(r"(-[\d.]*)+$", "", shorter) if loosely else shorter


def quickly(section: Section) -> dict[str, Any]:
    """What a quick run's steps would leave, of what full ones have left, whatever its size."""
    found = {}
    for step in section.steps(QUICK):
        exact = [data for key, data in STORED.items() if kind(key) == kind(step.key)]
        like = [
            data
            for key, data in sorted(STORED.items())
            if kind(key, loosely=True) == kind(step.key, loosely=True)
        ]
        found[step.key] = (exact or like)[0]
    return found


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_a_quick_run_has_the_same_tables(section: Section) -> None:
    results = section.report(QUICK, quickly(section))
    assert results
    for result in results:
        full = (FOLDER.parent / f"{result.name}.md").read_text()
        assert "A quick run" not in full
        assert to_markdown(result).count("<sup>") == len(result.entries)
        assert len([note for note in result.notes if note.startswith("A quick run")]) <= 1


def test_models_that_a_quick_run_does_not_measure_are_sampled() -> None:
    for name, at in (("flashe-figure-8", "cnn"), ("batchcrypt-figure-8", "fcn")):
        (section,) = sections([name])
        (quick,) = section.report(QUICK, quickly(section))
        (full,) = section.report(FULL, STORED)
        assert quick.notes[-1].startswith("A quick run measures")
        for a, b in zip(quick.entries, full.entries, strict=True):
            assert (a.row, a.who, a.what) == (b.row, b.who, b.what)
            if a.group == "ours" and "to" not in a.what and b.number.mark == "counted":
                assert a.number.value == pytest.approx(b.number.value, rel=0.02)
                assert (a.number.mark == "counted") == (NAMES[at] in a.row)


def test_steps_are_shared_and_a_quick_run_is_a_fraction() -> None:
    quick, full = (steps_of(sections(), plan) for plan in (QUICK, FULL))
    assert sum(step.weight for step in quick) < sum(step.weight for step in full) / 10
    for plan in (QUICK, FULL):
        assert len(steps_of(list(ROUNDS.values()), plan)) == len(steps(plan))
        keys = {step.key for step in sash_times.SECTIONS[0].steps(plan)}
        assert sash_times.ratio_step(plan).key in keys
    assert next(section.name for section in sections(["sash"])) == "sash-figure-3"
    with pytest.raises(ConfigError, match="'none': choose from headlines"):
        sections(["none"])


def test_a_ratio_that_does_not_hold_says_so() -> None:
    (section,) = headlines.SECTIONS
    point = sash_times.ratio_step(FULL).key
    slow = {**STORED[point]["SASH"], "client": 1e3}
    for sash, said in ((STORED[point]["SASH"], "holds"), (slow, "does NOT hold")):
        (result,) = section.report(FULL, STORED | {point: {**STORED[point], "SASH": sash}})
        (line_,) = (e for e in result.entries if "Flower" in e.row and e.group == "ours")
        assert line_.who.endswith(said)


def test_what_a_tenth_takes_off() -> None:
    three = [
        {"aggregation": measured(seconds), "upload": counted(nbytes)}
        for seconds, nbytes in ((1, 100), (2, 150), (9, 1100))
    ]
    ratio = selective(*three)
    assert ratio["all of it"] == {"time": measured(4.5), "bytes": counted(1100 / 150)}
    assert ratio["beyond"] == {"time": measured(8), "bytes": counted(20)}


# --- what notes say of the papers' numbers ---


def test_iterations_of_an_epoch_are_those_that_hours_imply() -> None:
    for model in MODELS:
        for mode, near in (("FATE", 2e-3), ("BatchCrypt", 5e-3)):
            said = line("BatchCrypt", model, mode)
            implied = said.hours * 3600 / (said.epochs * iteration_s("BatchCrypt", model, mode))
            assert implied == pytest.approx(ITERATIONS[model], rel=near)
    plain = [iteration_s("BatchCrypt", model, "plain") for model in MODELS]
    assert plain == pytest.approx([2.2, 20, 57], rel=0.01)


def test_the_papers_gigabytes_are_of_other_iterations_than_its_hours() -> None:
    def whole(paper: str, model: str, mode: str) -> float:
        said = line(paper, model, mode)
        each = traffic_mb(paper, model, mode) / 1024
        return each * said.epochs * ITERATIONS[model] / said.traffic_gb

    for model, tenths, plain in (("fcn", 1, 1.27), ("alexnet", 10, 90), ("lstm", 10, 90)):
        for mode, factor in (("FATE", tenths), ("BatchCrypt", tenths), ("plain", plain)):
            assert whole("BatchCrypt", model, mode) == pytest.approx(factor, rel=0.04)
    for model, clients in zip(MODELS, (COHORT, 1, 1), strict=True):
        for mode in ("ESAFL", "plain"):
            assert COHORT / whole("ESAFL", model, mode) == pytest.approx(clients, rel=0.12)
    each = [traffic_mb("BatchCrypt", m, "FATE") * 2**20 / (18 * VALUES[m]) for m in MODELS]
    assert (min(each), max(each)) == pytest.approx((625, 654), abs=1)
    for model, smaller in zip(MODELS, (68, 103, 112), strict=True):
        stock, own = (traffic_mb("ESAFL", model, mode) for mode in ("FATE", "ESAFL"))
        assert stock / own == pytest.approx(smaller, rel=0.04)


def test_a_bill_is_machines_and_what_leaves_them() -> None:
    assert paper_usd("fcn", "FATE")[0] == pytest.approx(8.758 * 122.5)
    for model, saved in zip(MODELS, (97.4, 98.6, 98.8), strict=True):  # Sec. 6.5
        stock, batched = (paper_usd(model, mode)[1] for mode in ("FATE", "BatchCrypt"))
        assert 100 * (1 - batched / stock) == pytest.approx(saved, abs=0.06)


def test_flashes_sizes_are_what_its_parameters_make() -> None:
    """512 bytes a Paillier ciphertext, 20 bits a plain value."""
    for row in TABLE_2:
        if row.method == "Pai":
            assert row.size / row.values == 512
        if row.method == "FLASHE":
            assert row.size == PLAIN_BYTES[row.values]
            assert 8 * row.size / row.values == pytest.approx(20, rel=1e-3)


def test_fedmls_ratios_come_out() -> None:
    said = (240.83, 10.10, 17.05, 17.50, 16.70, 16.24, 16.45, 16.61, 16.60, 16.58, 16.61, 16.62)
    for model, ratio in zip(FEDML_MODELS, said, strict=False):
        assert model.he_bytes / model.plain_bytes == pytest.approx(ratio, rel=5e-3)
    for model, ratio in zip(FEDML_MODELS[-4:], (4.32, 6.34, 6.96, 5.39), strict=True):
        assert model.he_s / model.plain_s == pytest.approx(ratio, rel=5e-3)
    llama = FEDML_MODELS[-1]
    assert llama.plain_bytes * 1e9 / (1 << 30) / llama.values == pytest.approx(2, rel=0.01)
    times = [round(row.seconds / TABLE_7[0.0].seconds, 2) for row in TABLE_7.values()]
    assert times == [1.0, 1.74, 2.83, 3.96, 5.01, 6.34]
    each = {row.nbytes / -(-CNN.values // row.batch) / 1024 for row in TABLE_6}
    assert all(256 < size < 260 for size in each)

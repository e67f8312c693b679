"""ESAFL's Tables 3 and 4: counts are those of what is encrypted, errors keep their marks."""

from __future__ import annotations

from typing import Any

import pytest

from flhe_lab.bench.esafl_sizes import MODELS, Model
from flhe_lab.tables import esafl_packing
from flhe_lab.tables.esafl_packing import AS_COUNTED, RINGS, counts, errors
from flhe_lab.tables.result import Result
from tests.sim.tables.made_up import FULL, QUICK, quietly, result

TINY = Model("TINY", 900, (3, 1), (2.5, 1.25), 0.5)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return errors(TINY, 32, 1, quietly, 64)


def test_what_is_counted_is_what_is_encrypted(rows: list[dict[str, Any]]) -> None:
    counted = counts(TINY.values, 32, 64)
    assert len(rows) == 6
    for row in rows:
        same = counted[row["encoding"], row["packed"]]
        assert (same.ciphertexts, same.upload_bytes) == (row["ciphertexts"], row["upload_bytes"])


def by_name(table: Result) -> dict[tuple[str, str, str, str], Any]:
    return {(e.row, e.who, e.group, e.what): e.number for e in table.entries}


def test_table_3_has_the_papers_counts_and_ours() -> None:
    table = result("esafl-table-3", QUICK, {})
    found = by_name(table)
    assert not esafl_packing.SECTIONS[0].steps(QUICK)
    assert table.marks() == {"counted", "published"}
    for model, row in zip(MODELS, ("FCN (0.10M)", "AlexNet (1.25M)", "LSTM (4.02M)"), strict=True):
        for how, ciphertexts in zip(esafl_packing.HOW, model.ciphertexts, strict=True):
            mine = found[row, AS_COUNTED, "ours", f"ciphertexts, {how}"]
            assert mine.value == found[row, "ESAFL", "paper", f"ciphertexts, {how}"].value
            assert mine.value == ciphertexts
        packed = "traffic, with packing"
        for ring in RINGS:
            ours = found[row, f"ours, {ring}", "ours", packed].value
            assert ours < found[row, "ESAFL", "paper", packed].value
    fcn = [
        found["FCN (0.10M)", *key, "traffic, with packing"].value
        for key in ((AS_COUNTED, "ours"), ("ESAFL", "paper"))
    ]
    assert fcn[0] / fcn[1] == pytest.approx(2, rel=2e-3)  # the note: one way


def test_table_4_keeps_marks_and_names_all_models(rows: list[dict[str, Any]]) -> None:
    for plan, measured in ((QUICK, 1), (FULL, 6)):
        steps = esafl_packing.steps_4(plan)
        assert len({step.key for step in steps}) == measured
        table = result("esafl-table-4", plan, {step.key: rows for step in steps})
        ours = {e.row for e in table.entries if e.group == "ours"}
        assert len(ours) == measured
        papers = {e.row for e in table.entries if e.group == "paper"}
        assert papers == {e.row for e in table.entries if "32 bits" in e.row}
        assert len(papers) == 3
        found = by_name(table)
        at = "FCN (0.10M), 32 bits"
        what = "error of a sum, with packing"
        total = found[at, AS_COUNTED, "ours", what]
        mean = found[at, AS_COUNTED, "ours", "error of a mean, with packing"]
        assert total.value == pytest.approx(9 * mean.value)
        # Of TINY's 900 values some were run, which are not all of FCN's.
        assert total.mark == "sampled"
        assert found[at, "ours, rns-8192", "ours", what].value < total.value
        assert (found[at, "ESAFL", "paper", what].value) == 1e-9

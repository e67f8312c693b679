"""ESAFL's tables: what is counted, what is measured; and its rows in the benchmark."""

from __future__ import annotations

import math

import pytest

from flhe_lab.bench import Setting, times
from flhe_lab.bench.esafl_sizes import COHORT, MODELS, Model, Row, measure
from flhe_lab.papers.packing import PaperPacking, unpacked

TINY = Model("TINY", 900, (3, 1), (2.5, 1.25), 0.5)


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, bool], Row]:
    found = measure(TINY, 16, n=64, sample=1)
    return {(row.encoding, row.packed): row for row in found}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_papers_counts_and_traffic_come_out(model: Model) -> None:
    packing = PaperPacking(COHORT, 16, halves=False, zero=False)
    counts = [p.plaintexts(model.values) for p in (unpacked(packing), packing)]
    assert counts == list(model.ciphertexts)
    for packed, count in enumerate(counts):
        both_ways = Row("", 16, bool(packed), count, count * 2**15 * 478 // 8, 0, None).traffic_mb
        one_way = (model.name, packed) == ("FCN", 1)
        assert both_ways / (2 if one_way else 1) == pytest.approx(model.traffic[packed], rel=2e-3)
    assert 8 * model.values / 2**20 == pytest.approx(model.plain_traffic, abs=6e-3)


def test_the_text_counts_otherwise() -> None:
    packing = PaperPacking(COHORT, 16)
    assert [unpacked(packing).plaintexts(m.values) for m in MODELS] == [4, 39, 123]
    assert [packing.plaintexts(m.values) for m in MODELS] == [1, 2, 7]
    zero = PaperPacking(COHORT, 16, halves=False)
    assert [zero.plaintexts(m.values) for m in MODELS] == [1, 4, 13]


def test_counts(rows: dict[tuple[str, bool], Row]) -> None:
    assert list(rows) == [
        ("paper, as counted", False),
        ("paper, as counted", True),
        ("paper, as written", False),
        ("paper, as written", True),
        ("ours, paper-32768", False),
        ("ours, paper-32768", True),
        ("ours, goldilocks-4096", True),
        ("ours, rns-8192", True),
        ("ours, rns-16384", True),
    ]
    counts = [row.ciphertexts for row in rows.values()]
    # 32 values a polynomial, 21 polynomials; 64 values, 20.
    assert counts == [29, 2, 15, 1, 1, 1, 1, 1, 1]
    assert rows["paper, as counted", True].upload_bytes == 2 * 64 * 478 // 8
    # Two values in eight bytes.
    assert rows["ours, goldilocks-4096", True].upload_bytes == 450 * 8
    narrow = [rows[f"ours, {ring}", True].upload_bytes for ring in ("rns-8192", "rns-16384")]
    assert max(narrow) < 2.7 * 900
    assert rows["ours, paper-32768", False].upload_bytes > 20 * narrow[0]


def test_errors_are_measured(rows: dict[tuple[str, bool], Row]) -> None:
    sample = {key: row.measured for key, row in rows.items()}
    assert sample["paper, as counted", False] == 32
    assert sample["paper, as counted", True] == 32 * 21
    assert sample["paper, as written", True] == 900  # all of it, in one plaintext
    assert sample["ours, paper-32768", False] == 0
    for (name, packed), row in rows.items():
        if name == "ours, paper-32768" and not packed:
            assert row.error is None
            continue
        # A mean absolute deviation of nine roundings, or of nine times n of them.
        unit = {"paper, as counted": 2**-15, "paper, as written": 9 * math.sqrt(2) * 2**-15}
        roundings = {"paper, as counted": 64, "paper, as written": 32}.get(name, 1)
        deviation = unit.get(name, 2**-15) * math.sqrt(9 * roundings / 12)
        assert row.error == pytest.approx(math.sqrt(2 / math.pi) * deviation, rel=0.5)


def test_the_whole_vector_if_asked(rows: dict[tuple[str, bool], Row]) -> None:
    found = measure(TINY, 16, n=64, sample=None, rings=())
    assert [row.measured for row in found] == [900] * 4
    assert [row.ciphertexts for row in found] == [r.ciphertexts for r in list(rows.values())[:4]]


# --- flhe bench ---


def test_esafl_is_timed_in_two_rings() -> None:
    setting = Setting(20_000, 10, 2)
    found = {row.name: row for row in times.bench(["esafl"], setting, repeats=1)}
    usual, narrow = found["esafl"], found["esafl rns-8192"]
    for row, most in ((usual, 4.0), (narrow, 2.7)):
        assert row.kind == "scheme"
        assert row.max_error is not None
        assert row.max_error < 4e-5  # half a step, and a little of the weights
        assert row.bytes_per_value is not None
        # The header, the extras, and what a last block is rounded up to come on top.
        assert 0.7 * most < row.bytes_per_value < most + 600 / setting.values
        for taken in (row.encrypt_s, row.add_s, row.decrypt_s):
            assert taken is not None
            assert taken.min > 0
    assert usual.note is not None
    assert "in 1 x 64" in usual.note
    assert "log q = " in str(narrow.note)

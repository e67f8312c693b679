"""Ways to compute Paillier: all give the same, wrong ones are noticed, the table adds up."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError, FlheError
from flhe_lab.bench import Times, measure
from flhe_lab.bench.paillier import Row, ratios, table
from flhe_lab.bench.paillier_ways import Trick, Tricks

pytest.importorskip("phe")
gmpy2 = pytest.importorskip("gmpy2")


@pytest.fixture(scope="module")
def tricks() -> Tricks:
    return Tricks(2048, 6)


def test_all_ways_give_the_same(tricks: Tricks) -> None:
    """By decryption as it is printed, which none of the timed ways is checked by."""
    p, q = int(tricks.p), int(tricks.q)
    n, order = p * q, (p - 1) * (q - 1)
    seen = set()
    batch = tricks._scheme().batch
    for way in tricks.all():
        if way.before is not None:
            way.before()
        found = way.work()
        tricks.check(way, found)
        if way.group == "encrypt":
            assert len(found) == way.count
            for c in found:
                opened = (gmpy2.powmod(c, order, n * n) - 1) // n * pow(order, -1, n) % n
                # Above the slots, `batched` has a tag.
                (slots,), _ = batch.lower([opened - n if 2 * opened > n else opened])
                assert slots % n == tricks.message
                assert (opened == tricks.message) is ("batched" not in way.name)
                assert c not in seen  # each draws afresh
                seen.add(c)
        else:
            assert all(m == tricks.message for m in found)
            assert len(found) == way.count or way.name.startswith("textbook")


def test_wrong_results_are_noticed(tricks: Tricks) -> None:
    n = tricks.n
    wrong = (1 + (tricks.message + 1) * n) * tricks._textbook() % (n * n)
    with pytest.raises(FlheError, match="its times mean nothing"):
        measure([tricks.contender(Trick("x", "encrypt", 1, lambda: [wrong]))], 1)
    with pytest.raises(FlheError, match="its times mean nothing"):
        tricks.check(Trick("x", "decrypt", 2, list), [tricks.message, tricks.message + 1])


def test_ratios_are_to_phe_within_a_group() -> None:
    rows = [
        Row("phe", "encrypt", 4, 1, 3072, Times(0.030, 0.031)),
        Row("fast", "encrypt", 4, 1, 3072, Times(0.001, 0.002)),
        Row("phe", "decrypt", 4, 1, 3072, Times(0.009, 0.010)),
        Row("fast", "decrypt", 4, 1, 3072, Times(0.0045, 0.005)),
    ]
    found = ratios(rows)
    assert found["encrypt", "fast"] == pytest.approx(30)
    assert found["decrypt", "fast"] == pytest.approx(2)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(rows))
    assert "30.00x" in console.export_text()


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "tricks.json"
    options = ["--key-bits", "2048", "--values", "3", "--repeats", "1", "--json", str(file)]
    result = CliRunner().invoke(app, ["bench", "paillier", *options])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert found["key_bits"] == 2048
    rows = {(row["group"], row["name"]): row for row in found["rows"]}
    phe = rows["encrypt", "phe"]
    assert phe["times_phe"] == 1
    for (group, name), row in rows.items():
        assert 0 < row["seconds"]["min"] <= row["seconds"]["median"]
        same = rows[group, "phe"]["seconds"]["min"] / row["seconds"]["min"]
        assert row["times_phe"] == pytest.approx(same), name


def test_what_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="--count 0"):
        Tricks(2048, 0)
    with pytest.raises(ConfigError, match="key_bits"):
        Tricks(1024, 3)

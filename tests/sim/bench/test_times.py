"""flhe bench: what its rows hold, and that it times the right thing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError, FlheError
from flhe_lab.bench import Contender, Laps, Setting, Times, measure
from flhe_lab.bench import times as timing
from flhe_lab.bench.limits import limits
from flhe_lab.bench.schemes import SCHEMES, scheme_named
from flhe_lab.bench.table import bare_note, matrix_note, selected_note, table

SMALL = Setting(values=20_000, cohort=5, dropouts=1)


def test_rows_have_what_was_measured_and_null_for_the_rest() -> None:
    rows = {r.name: r for r in timing.bench(["flashe", "plain"], SMALL, repeats=2)}
    assert list(rows) == ["flashe", "plain", "openssl-aes-ctr", "numpy-add-f32", "numpy-copy-f32"]
    ours = rows["flashe"]
    assert (ours.kind, ours.values, ours.cohort, ours.dropouts) == ("scheme", 20_000, 5, 1)
    assert ours.bytes_per_value == pytest.approx(19 / 8, rel=0.02)
    assert ours.max_error is not None
    assert 0 < ours.max_error < 1e-4
    for times in (ours.encrypt_s, ours.add_s, ours.decrypt_s):
        assert times is not None
        assert 0 < times.min <= times.median
    assert rows["openssl-aes-ctr"].add_s is None
    assert rows["numpy-add-f32"].encrypt_s is None
    assert rows["numpy-add-f32"].max_error is None


def test_json_is_as_documented(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    arguments = ["bench", "flashe", "--values", "5000", "--repeats", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert set(found) == {"machine", "rows"}
    fields = (
        *("name", "kind", "values", "cohort", "dropouts", "threads", "encrypt_s", "add_s"),
        *("decrypt_s", "upload_bytes", "bytes_per_value", "max_error", "note"),
    )
    for row in found["rows"]:
        assert tuple(row) == fields
        assert row["kind"] in {"scheme", "peer", "limit"}
        assert row["encrypt_s"] is None or set(row["encrypt_s"]) == {"min", "median"}


def test_peers_agree_with_us() -> None:
    pytest.importorskip("tenseal")
    pytest.importorskip("phe")
    setting = Setting(values=5000, cohort=3)
    rows = timing.bench(["flashe"], setting, repeats=1, with_peers=True)
    found = {r.name: r for r in rows if r.kind == "peer"}
    assert list(found) == [
        "tenseal-ckks-8192-60-40-40",
        "tenseal-ckks-8192-60-60",
        "tenseal-bfv-4096-36-36-37",
        "tenseal-bfv-4096-35-35",
        "phe-3072 a value, projected",
        "phe-3072 batched, projected",
    ]
    for name, peer in found.items():
        assert peer.max_error is not None
        assert peer.max_error < (1e-6 if "ckks" in name or "a value" in name else 2e-5)
        assert peer.note is not None
        assert ("projected from" in peer.note) == ("projected" in name)
    sizes = [peer.bytes_per_value for peer in found.values()]
    assert sizes == sorted(sizes[:4], reverse=True) + sizes[4:]
    assert found["phe-3072 a value, projected"].upload_bytes == 5000 * (768 + 4)
    # 17 bits of sum, one of sign, one to spare: 161 values in 3071 bits.
    assert found["phe-3072 batched, projected"].upload_bytes == 32 * 768


def test_the_table_fits_a_terminal_of_80() -> None:
    """Names break between words, numbers nowhere, and no column is lost."""
    slow, quick = Times(36_144.6, 36_144.6), Times(0.9999, 0.9999)
    shape = {"values": 10**7, "cohort": 10, "dropouts": 0, "threads": 1, "note": None}
    names = ["phe-3072 a value, projected", "tenseal-ckks-8192-60-40-40", "fedml-he select 0.1"]
    names += ["openssl-aes-ctr", "numpy-add-f32"]
    rows = [
        timing.Row(
            name=name,
            kind="limit" if name[:2] in ("op", "nu") else "peer",
            encrypt_s=slow if name.startswith("phe") else quick,
            add_s=quick,
            decrypt_s=slow if name.startswith("phe") else quick,
            upload_bytes=7_720_000_000,
            bytes_per_value=772.0,
            max_error=1e-10,
            **shape,
        )
        for name in names
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(table(rows))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    words = set(text.split())
    assert {word for name in names for word in name.split()} <= words
    assert {"36,145", "999.900", "36,148x", "7720.00", "772.00", "1.0e-10", "error"} <= words
    assert "…" not in text


def stub(name: str = "stub", **known: object) -> Contender:
    return Contender(name, {"encrypt": lambda: None}, **known)  # type: ignore[arg-type]


def test_a_sample_is_projected_and_laps_are_believed() -> None:
    seconds = iter([9.0, 0.5, 0.25, 0.75])  # the first turn warms up

    def work() -> Laps:
        now = next(seconds)
        return Laps(encrypt=now, decrypt=2 * now)

    found = measure([Contender("sampled", {"both": work}, projection=250.0)], 3)["sampled"]
    assert found.times == {"encrypt": Times(62.5, 125.0), "decrypt": Times(125.0, 250.0)}
    assert found.repeats == 3


def test_all_take_turns_as_often_as_they_may() -> None:
    seen: list[str] = []

    def one(name: str, most: int) -> Contender:
        work = {"encrypt": lambda: seen.append(name)}
        return Contender(name, work, max_repeats=most, before=lambda: seen.append("ready"))

    found = measure([one("a", 9), one("b", 2), one("c", 1)], 3)
    turns = ["a b", "a b c", "a b", "a"]
    assert seen == [each for turn in turns for who in turn.split() for each in ("ready", who)]
    assert [each.repeats for each in found.values()] == [3, 2, 1]


def test_what_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="--repeats 0"):
        measure([stub()], 0)
    with pytest.raises(FlheError, match="one name"):
        measure([stub(), stub()], 1)
    for error in (0.5, float("nan")):
        with pytest.raises(FlheError, match="its times mean nothing"):
            measure([stub(error=lambda error=error: error)], 1)


def test_fedml_he_is_timed_whole_and_in_part() -> None:
    pytest.importorskip("tenseal")
    rows = timing.bench(["fedml-he"], Setting(60_000, 5), repeats=1, select=0.1)
    found = {row.name: row for row in rows}
    whole, part, clear = list(found.values())[:3]
    assert (whole.name, part.name) == ("fedml-he", "fedml-he select 0.1")
    assert clear.name == "its clear part, 0.9"
    for row in (whole, part):
        assert row.max_error is not None
        assert row.max_error < 4e-5
        for times in (row.encrypt_s, row.add_s, row.decrypt_s):
            assert times is not None
            assert times.min > 0
    # 4096 values to a block of 4096 x 54 or 55 bits; 6000 of them and the extras take two.
    assert whole.upload_bytes is not None
    assert part.upload_bytes is not None
    assert clear.upload_bytes is not None
    block = 4096 * 55 // 8
    assert whole.upload_bytes - 300 <= 15 * block
    assert part.upload_bytes - 300 <= 2 * block + clear.upload_bytes + 8
    assert clear.upload_bytes == 54_000 * 19 // 8
    assert "x of encrypting all in time" in selected_note(rows)
    assert selected_note(rows[:1]) == bare_note(rows) == ""


def test_batchcrypt_is_timed() -> None:
    pytest.importorskip("gmpy2")
    rows = {r.name: r for r in timing.bench(["batchcrypt"], Setting(4000, 9, 2), repeats=1)}
    row = rows["batchcrypt"]
    assert row.max_error is not None
    assert row.max_error < 4e-5
    assert row.upload_bytes is not None
    # 4000 values and the extras, 142 a ciphertext, and a header: nothing else is uploaded.
    assert 29 * 768 <= row.upload_bytes < 29 * 768 + 300
    assert row.note is not None
    assert "29 ciphertexts of 142 values" in row.note
    for times in (row.encrypt_s, row.add_s, row.decrypt_s):
        assert times is not None
        assert times.min > 0


def test_schemes_that_cannot_be_timed() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        scheme_named("rot13")
    with pytest.raises(ConfigError, match="--select 1"):
        timing.bench(["fedml-he"], SMALL, select=1.0)
    with pytest.raises(ConfigError, match="name that scheme"):
        timing.bench(["flashe"], SMALL, select=0.5)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"values": 0}, "--values 0"),
        ({"cohort": 1}, "--cohort 1"),
        ({"cohort": 5, "dropouts": 4}, "two clients must remain"),
        ({"threads": 0}, "--threads 0"),
    ],
)
def test_settings_that_cannot_be_measured(changed: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Setting(**changed)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "plain"])
def test_a_mean_that_is_not_the_mean_is_an_error(name: str) -> None:
    """Another vector is added up than the one that the mean is held against."""
    setting = Setting(values=900, cohort=3)
    updates = setting.updates()
    contender = SCHEMES[name](setting, updates)
    contender.turn()
    assert contender.error is not None
    assert contender.error() < 1e-4
    for update in updates:
        update[7] += np.float32(0.5)
    with pytest.raises(FlheError, match="its times mean nothing"):
        contender.checked()


def test_the_limit_is_the_keystream_that_the_scheme_takes() -> None:
    gone = set(range(5)) - set(SMALL.survivors)
    assert len(gone) == 1
    first = limits(SMALL)[0]
    assert first.note is not None
    assert "2 streams to encrypt, 4 to decrypt" in first.note  # two runs of senders, two ends each


def test_tables_fit_a_terminal() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(table(timing.bench(["flashe", "plain"], SMALL, repeats=1)))
    text = console.export_text()
    console.file.close()
    assert "flashe" in text
    assert "…" not in text


def test_sash_is_timed_with_its_parts_and_the_papers_form() -> None:
    rows = {r.name: r for r in timing.bench(["sash"], Setting(4000, 6, 2), repeats=1)}
    parts = ["sash mask", "sash lwr-736", "sash mask lwr-736"]
    assert [*rows][:5] == ["sash", *parts, "openssl-aes-ctr"]
    assert "the mask (" in matrix_note(list(rows.values()))
    assert matrix_note([rows["sash"]]) == ""
    for name in ("sash", "sash lwr-736"):
        row = rows[name]
        assert row.max_error is not None
        assert row.max_error < 1e-5
        # 4000 values and the extras, four bytes each, and a header: nothing else is uploaded.
        assert row.upload_bytes is not None
        assert 16_000 < row.upload_bytes < 16_000 + 4 * 3 * 10 + 300
    part = rows["sash mask"]
    assert (part.kind, part.add_s, part.decrypt_s, part.max_error) == ("part", None, None, None)
    assert part.encrypt_s is not None
    assert "part" not in {r.kind for r in timing.bench(["plain"], SMALL, repeats=1)}

"""`flhe bench`: turns, rows, tables and the command around them; memory, in processes of their own."""

from __future__ import annotations

import io
import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from rich.console import Console

from flhe.errors import ConfigError, FlheError
from flhe_app import style
from flhe_lab.bench import figures, memory, phe
from flhe_lab.bench.apart import Apart, Peaks
from flhe_lab.bench.contender import Contender, Laps, Setting
from flhe_lab.bench.synthetic import STEP, initial
from flhe_lab.bench.table import table
from flhe_lab.bench.turns import Measured, Times, measure
from tests.provision.site import run

SMALL = Setting(values=20_000, cohort=5, dropouts=1)


def stub(**known: object) -> Contender:
    return Contender("stub", {"encrypt": lambda: None}, **known)  # type: ignore[arg-type]


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
        return Contender(name, work, max_repeats=most)

    found = measure([one("a", 9), one("b", 2), one("c", 1)], 3)
    assert seen == ["a", "b", "a", "b", "c", "a", "b", "a"]
    assert [each.repeats for each in found.values()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("contenders", "repeats", "error", "says"),
    [
        ([stub()], 0, ConfigError, "--repeats 0"),
        ([stub(), stub()], 1, FlheError, "one name"),
        ([stub(error=lambda: 0.5)], 1, FlheError, "its times mean nothing"),
        ([stub(error=lambda: float("nan"))], 1, FlheError, "its times mean nothing"),
    ],
)
def test_what_cannot_be_measured(
    contenders: list[Contender], repeats: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        measure(contenders, repeats)


# --- rows and tables ---


def test_json_is_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phe, "SAMPLE", 1)  # a power takes python-paillier 23 ms
    monkeypatch.setattr(phe, "REPEATS", 1)
    words = ["bench", "flashe", "esafl", "--peers", "--values", "5000", "--repeats", "1"]
    found = json.loads(run(*words, "--json").stdout)
    assert set(found) == {"machine", "rows"}
    names = ["flashe", "esafl", "esafl rns-8192", "openssl-aes-ctr", "numpy-add-f32"]
    assert [row["name"] for row in found["rows"]][:5] == names
    peers = ["ckks-8192-60-40-40", "ckks-8192-60-60", "bfv-4096-38-38"]
    theirs = [row["name"] for row in found["rows"] if row["kind"] == "peer"]
    assert theirs[:3] == [f"tenseal-{name}" for name in peers]
    assert theirs[3:] == ["phe-3072 a value, projected", "phe-3072 batched, projected"]
    fields = (
        *("name", "kind", "values", "cohort", "dropouts", "threads", "encrypt_s", "add_s"),
        *("decrypt_s", "upload_bytes", "bytes_per_value", "max_error", "note"),
    )
    for row in found["rows"]:
        assert tuple(row) == fields
        assert row["kind"] in {"scheme", "peer", "limit"}
        assert row["encrypt_s"] is None or set(row["encrypt_s"]) == {"min", "median"}


def test_the_table_fits_a_terminal_of_80() -> None:
    slow, quick = Times(36_144.6, 36_144.6), Times(0.9999, 0.9999)
    names = ["phe-3072 a value, projected", "tenseal-ckks-8192-60-40-40"]
    rows = {}
    for name in (*names, "openssl-aes-ctr", "numpy-add-f32"):
        times = {"encrypt": slow if name == names[0] else quick, "add": quick, "decrypt": quick}
        kind: Any = "peer" if name in names else "limit"
        contender = Contender(name, {}, kind, upload_bytes=7_720_000_000)
        rows[name] = Measured(contender, times, 1e-10, 1)
    console = Console(file=io.StringIO(), width=80)
    console.print(table(rows, Setting(10**7)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    words = set(text.split())
    assert {word for name in names for word in name.split()} <= words
    assert {"36,145", "999.900", "36,148x", "7720.00", "772.00", "1.0e-10", "error"} <= words
    assert "…" not in text


# --- figures ---


def test_data_lie_beside_a_figure_and_some_can_go_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    beside = figures.save_data(tmp_path / "x.svg", "flhe x", 3, {"rows": [1]})
    assert json.loads(beside.read_text()) == {"format": "flhe x", "version": 3, "rows": [1]}
    for name, says in (("a.pdf", "a figure is a .svg"), ("no/a.svg", "there is no directory")):
        with pytest.raises(ConfigError, match=says):
            figures.check(tmp_path / name)
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ConfigError, match=r"a\.json: cannot be written \(Is a directory\)"):
        figures.save_data(tmp_path / "a.svg", "x", 1, {})
    (tmp_path / "b.svg").mkdir()
    with (
        pytest.raises(ConfigError, match=r"b\.svg: the picture cannot be written"),
        style.drawn(tmp_path / "b.svg", "What to see.", 1),
    ):
        pass
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # not installed
    with pytest.raises(ConfigError, match=r"pip install 'matplotlib>="):
        figures.check(tmp_path / "a.svg")


# --- `flhe bench --memory`: each message in a process of its own, and what it held there ---

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own figures")


@linux
def test_a_peak_is_of_its_phase() -> None:
    peaks = Peaks()
    peaks.end("before")
    with mmap.mmap(-1, 20 << 20) as fresh:  # the heap would use memory again that others freed
        fresh.write(b"1" * (20 << 20))
    peaks.end("large")
    peaks.end("small")
    _, large, small = peaks.found
    assert large["peak_bytes"] - small["peak_bytes"] > 15 << 20
    assert min(large["seconds"], small["seconds"]) > 0


def test_what_an_app_holds_is_not_ours() -> None:
    fields = ("stage", "phase", "seconds", "peak_bytes")
    ended = [
        ("round", "start", 9.0, 9),
        ("round", "encode", 1.0, 500),
        ("round", "encode", 3.0, 700),
        ("sync", "encrypt", 2.0, 300),
    ]
    rows = memory._phases([dict(zip(fields, each, strict=True)) for each in ended], 100)
    found = [("round: encode", 2.0, 600), ("sync: encrypt", 2.0, 300)]
    assert rows == [memory.Held(*each) for each in found]


def test_a_wrong_model_is_an_error() -> None:
    start = initial(100)
    mean = memory.ROUNDS * STEP * 2
    after = {name: array.numpy() + mean for name, array in start.items()}
    memory._check(start, after)
    after["layer-0"][7] += STEP
    with pytest.raises(FlheError, match="not what the nodes have made"):
        memory._check(start, after)


@linux
def test_a_process_that_fails_is_not_waited_for(tmp_path: Path) -> None:
    with Apart(3, tmp_path) as grid:
        grid.contexts[100].node_config["flhe-trust"] = object()  # no message can hold it
        with pytest.raises(FlheError, match="JSON"):
            memory.HEStrategy(min_train_nodes=3, min_available_nodes=3).start(
                grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), 1
            )


@linux
@pytest.mark.sweep
def test_a_whole_measurement() -> None:
    result = run("bench", "sash", "--memory", "--values", "2000", "--json")
    assert result.exit_code == 0, result.output
    [found] = json.loads(result.stdout)
    rows = {row["phase"]: row for row in found["rows"]}
    assert {"round: open", "round: encrypt", "unmask: encrypt", memory.SERVER} <= rows.keys()
    assert all(row["peak_bytes"] > 10 << 20 and row["seconds"] >= 0 for row in rows.values())

"""`flhe bench`: turns, rows, tables and the command around them."""

from __future__ import annotations

import builtins
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError, FlheError
from flhe_app import style
from flhe_lab.bench import figures, phe
from flhe_lab.bench.contender import Contender, Laps, Setting
from flhe_lab.bench.table import table
from flhe_lab.bench.turns import Measured, Times, measure

SMALL = Setting(values=20_000, cohort=5, dropouts=1)


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
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert set(found) == {"machine", "rows"}
    names = ["flashe", "esafl", "esafl rns-8192", "openssl-aes-ctr", "numpy-add-f32"]
    assert [row["name"] for row in found["rows"]][:5] == names
    peers = ["ckks-8192-60-40-40", "ckks-8192-60-60", "bfv-4096-36-36-37", "bfv-4096-38-38"]
    theirs = [row["name"] for row in found["rows"] if row["kind"] == "peer"]
    assert theirs[:4] == [f"tenseal-{name}" for name in peers]
    assert theirs[4:] == ["phe-3072 a value, projected", "phe-3072 batched, projected"]
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


def test_a_scheme_that_there_is_not() -> None:
    result = CliRunner().invoke(app, ["bench", "rot13"])
    assert result.exit_code != 0
    assert "unknown scheme" in " ".join(result.output.split())


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
    real = builtins.__import__

    def none(name: str, *rest: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(ConfigError, match=r"pip install 'matplotlib>="):
        figures.check(tmp_path / "a.svg")

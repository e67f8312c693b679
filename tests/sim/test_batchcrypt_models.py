"""BatchCrypt's models: what is projected, what the ratios are, what is written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from flhe.errors import ConfigError, FlheError
from flhe.sim import batchcrypt_models
from flhe.sim.batchcrypt_contender import BatchcryptContender
from flhe.sim.batchcrypt_models import (
    BATCHED,
    OURS,
    VALUES,
    Cost,
    Model,
    command,
    measure,
    ratios,
)
from flhe.sim.batchcrypt_plot import plot, table
from flhe.sim.bench import Times

pytest.importorskip("phe")
pytest.importorskip("gmpy2")

TINY = Model("TINY", 700, 10.0, 20)
MADE_UP = [
    Cost(VALUES, Times(100, 110), Times(2, 3), Times(30, 31), 5000, ("encrypt", "add", "decrypt")),
    Cost(BATCHED, Times(10, 11), Times(0.2, 0.3), Times(3, 4), 50, ("encrypt", "add", "decrypt")),
    Cost(OURS, Times(1, 2), Times(0.1, 0.2), Times(2.2, 2.5), 40, ("decrypt",)),
]


def test_the_papers_models() -> None:
    assert [m.values for m in batchcrypt_models.MODELS] == [101_770, 1_250_000, 4_020_000]


def test_ratios_are_of_what_they_say() -> None:
    found = ratios(MADE_UP)
    assert found[f"work: {VALUES} / {OURS}"] == pytest.approx((100 + 8 * 2 + 30) / (1 + 0.8 + 2.2))
    assert found[f"work: {BATCHED} / {OURS}"] == pytest.approx((10 + 1.6 + 3) / 4)
    assert found[f"encrypt: {VALUES} / {OURS}"] == pytest.approx(100)
    assert found[f"decrypt: {BATCHED} / {OURS}"] == pytest.approx(3 / 2.2)
    assert found[f"bytes: {VALUES} / {OURS}"] == pytest.approx(125)


def test_every_projected_number_is_marked() -> None:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(table({TINY: MADE_UP}, 2048))
    text = console.export_text()
    assert "…" not in text
    for number in ("110 s", "24.000 s", "31.000 s", "146 s", "11.000 s", "4.000 s", "2.500 s"):
        assert f"~{number}" in text
    for number in ("2.000 s", "1.600 s"):  # ours, measured
        assert f" {number}" in text
        assert f"~{number}" not in text
    assert "10x" in text
    assert "20x" in text


def test_a_measurement() -> None:
    costs = {c.name: c for c in measure(TINY, 2048, repeats=1, sample=3)}
    assert list(costs) == [VALUES, BATCHED, OURS]
    assert costs[VALUES].projected == ("encrypt", "add", "decrypt")
    # 97 values a ciphertext: 8 of them, of which phe's sample is all, and ours decrypts 3.
    assert costs[BATCHED].projected == ()
    assert costs[OURS].projected == ("decrypt",)
    assert costs[BATCHED].upload_bytes == 8 * 512
    assert 8 * 512 <= costs[OURS].upload_bytes < 8 * 512 + 300
    whole = {c.name: c for c in measure(TINY, 2048, repeats=1, sample=None)}
    assert whole[OURS].projected == ()


def test_a_mean_that_is_not_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchcryptContender, "max_error", lambda _: 0.1)
    with pytest.raises(FlheError, match="flhe: its mean is not the mean"):
        measure(TINY, 2048, repeats=1)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(batchcrypt_models, "MODELS", (TINY, Model("SMALL", 900, 1.0, 2)))
    app = typer.Typer()
    app.command()(command)
    picture, data = tmp_path / "models.png", tmp_path / "data.json"
    options = ["--repeats", "1", "--figure", str(picture), "--json", str(data)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes()[:4] == b"\x89PNG"
    found = json.loads(data.read_text())
    beside = json.loads(picture.with_suffix(".json").read_text())
    assert beside["format"] == "flhe batchcrypt models"
    assert beside["models"] == found["models"]
    assert [m["name"] for m in found["models"]] == ["TINY", "SMALL"]
    assert found["models"][0]["paper_time"] == 10.0
    chosen = CliRunner().invoke(app, ["--model", "huge"])
    assert chosen.exit_code == 1


def test_the_figure_marks_what_is_projected(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    marked, measured = tmp_path / "a.png", tmp_path / "b.png"
    plot({TINY: MADE_UP}, 2048, marked)
    full = [*MADE_UP[:2], Cost(OURS, Times(1, 2), Times(0.1, 0.2), Times(2.2, 2.5), 40, ())]
    plot({TINY: full}, 2048, measured)
    assert marked.read_bytes() != measured.read_bytes()


def test_what_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="--repeats 0"):
        measure(TINY, 2048, repeats=0)

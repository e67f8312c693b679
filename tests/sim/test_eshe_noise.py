"""The noise experiment: its own distribution, its judgement, and small runs of it."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from flhe.errors import ConfigError
from flhe.math.sampling import SIGMA
from flhe.sim import eshe_noise
from flhe.sim.eshe_noise import chi_square_tail, command, judge, noise, probabilities


@pytest.mark.parametrize("cohort", [1, 2, 5])
def test_probabilities_are_convolutions(cohort: int) -> None:
    one = np.exp(-(np.arange(-40, 41) ** 2) / (2 * SIGMA**2))
    one /= one.sum()
    expected = np.ones(1)
    for _ in range(cohort):
        expected = np.convolve(expected, one)
    found = probabilities(cohort)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("cohort", [2, 100, 1000])
def test_sums_are_as_wide_as_theorem_3_says(cohort: int) -> None:
    found = probabilities(cohort)
    x = np.arange(found.size) - found.size // 2
    assert found @ x**2 == pytest.approx(cohort * SIGMA**2, rel=1e-6)


@pytest.mark.parametrize(
    ("x", "degrees", "tail"),
    [(18.307, 10, 0.05), (4.865, 10, 0.9), (124.342, 100, 0.05), (135.807, 100, 0.01)],
)
def test_tails_are_those_of_the_tables(x: float, degrees: int, tail: float) -> None:
    assert chi_square_tail(x, degrees) == pytest.approx(tail, abs=2e-3)


def counts(cohort: int, bound: int, drawn: int, widen: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(11)
    x = np.rint(rng.standard_normal(drawn) * SIGMA * math.sqrt(cohort) * widen).astype(np.int64)
    return np.bincount(np.clip(x, -bound, bound) + bound, minlength=2 * bound + 1)


def test_the_stated_distribution_passes_and_others_do_not() -> None:
    # Rounded normal samples are a sixth of a percent wider here: of 20,000 nobody can tell.
    good = judge(16, 0, 0, counts(16, 145, 20_000))
    assert good.p_value > 1e-3
    assert abs(good.variance_deviations) < 4
    wide = judge(16, 0, 0, counts(16, 145, 20_000, 1.1))
    assert wide.p_value < 1e-6
    assert wide.variance_deviations > 5
    shifted = judge(16, 0, 0, np.roll(counts(16, 145, 20_000), 2))
    assert shifted.p_value < 1e-6
    assert shifted.mean_deviations > 5


def test_chi_square_is_the_textbooks() -> None:
    seen = counts(2, 52, 5_000)
    found = judge(2, 0, 0, seen)
    chances = probabilities(2)[80 - 52 : 80 + 53]
    cells: dict[int, list[Fraction]] = {}
    often = [k for k in range(105) if chances[k] * 5_000 >= 25]
    for k in range(105):
        cell = min(max(k, often[0] - 1), often[-1] + 1)
        pair = cells.setdefault(cell, [Fraction(0), Fraction(0)])
        pair[0] += int(seen[k])
        pair[1] += Fraction(float(chances[k])) * 5_000
    expected = sum((float(s) - float(e)) ** 2 / float(e) for s, e in cells.values())
    assert found.chi_square == pytest.approx(expected, rel=1e-6)
    assert found.degrees == len(cells) - 1


@pytest.mark.parametrize(
    ("cohort", "ring"), [(2, "goldilocks-4096"), (16, "rns-8192"), (100, "goldilocks-4096")]
)
def test_sums_decode_and_noise_is_as_stated(cohort: int, ring: str) -> None:
    found = noise(cohort, 6_000, ring=ring, batch=4_000)
    assert found.wrong == 0
    assert found.coefficients == 6_000
    assert found.values % found.coefficients == 0
    # Keys are secure random: these fail a right sampler once in a million runs.
    assert found.p_value > 1e-6
    assert abs(found.mean_deviations) < 5.5
    assert abs(found.variance_deviations) < 6
    assert 2.5 * SIGMA * math.sqrt(cohort) < found.largest <= found.bound
    assert found.bound <= math.ceil(8 * SIGMA * math.sqrt(cohort))


def test_too_few_show_nothing() -> None:
    with pytest.raises(ConfigError, match="1,000 or more"):
        noise(2, 999)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(command)
    file = tmp_path / "noise.json"
    arguments = ["--coefficients", "2000", "--cohort", "2", "--cohort", "3", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "noise of sums" in result.output
    found = json.loads(file.read_text())
    assert found["format"] == "flhe eshe noise"
    assert [row["cohort"] for row in found["found"]] == [2, 3]
    assert all(row["wrong"] == 0 for row in found["found"])
    assert CliRunner().invoke(app, ["--coefficients", "5"]).exit_code == 1

    one = judge(2, 0, 0, counts(2, 52, 2000))
    monkeypatch.setattr(eshe_noise, "noise", lambda *_, **__: dataclasses.replace(one, wrong=1))
    assert CliRunner().invoke(app, ["--cohort", "2"]).exit_code == 1

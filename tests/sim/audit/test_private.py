"""Attacks on differential privacy: what they see, how strong they are, and what is allowed."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from flhe.cli import app as cli
from flhe.coding.base import Mechanism
from flhe.dpsgd import clipped_gradients
from flhe.training import accountant
from flhe_lab.audit import private_report
from flhe_lab.audit.guarantee import DELTAS, guarantee, power
from flhe_lab.audit.membership import rates, ratios, strengths
from flhe_lab.audit.shadows import CLIP, Effort, clipped, digits, opened, train
from flhe_lab.audit.sum_attacks import guess, reconstruct, records

pytestmark = pytest.mark.sweep  # minutes of training


TINY = Effort(200, 8, 2, 0.2, 0.5, (8,), 3, (0.1,), 1, 3, 1)


# --- what is opened ---


@pytest.mark.parametrize("clip", [0.3, 1e9])
def test_gradients_are_those_of_the_library(clip: float) -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(7, 65)), random.normal(size=(10, 8))
    x, y = (part[:20] for part in digits())
    model = torch.nn.Sequential(torch.nn.Linear(64, 7), torch.nn.Tanh(), torch.nn.Linear(7, 10))
    with torch.no_grad():
        for layer, weights in ((model[0], first), (model[2], second)):
            layer.weight[:] = torch.from_numpy(weights[:, :-1])
            layer.bias[:] = torch.from_numpy(weights[:, -1])
    inputs = torch.from_numpy(x[:, :-1]).float(), torch.from_numpy(y)
    theirs = clipped_gradients(model, functional.cross_entropy, *inputs, max_norm=clip)
    expected = [
        torch.column_stack([theirs[f"{i}.weight"], theirs[f"{i}.bias"]]).flatten() for i in (0, 2)
    ]
    ours = clipped(first, second, x, y, clip)
    assert np.allclose(ours, torch.cat(expected).numpy(), rtol=1e-4, atol=1e-5)


def test_opened_sums_have_the_noise_of_the_multiplier() -> None:
    sums = [np.full(20_000, value) for value in (1e-3, -2e-3, 4e-3, 0.0, 0.0)]
    assert np.allclose(opened(sums, 0.0, 3.0), 1e-3)
    noise = (opened(sums, 2.0, 3.0) - 1e-3) * 3
    assert np.std(noise) == pytest.approx(2.0 * CLIP, rel=0.03)
    assert abs(noise.mean()) < 6 * 2.0 / math.sqrt(noise.size)


def test_a_model_learns_from_its_half() -> None:
    effort = TINY._replace(rounds=150)
    members, confidence, accuracy = train(effort, 0.0, math.inf, (0,))
    assert 60 < members.sum() < 140
    assert accuracy > 0.8
    assert confidence[members].mean() > confidence[~members].mean()
    assert np.array_equal(train(TINY, 1.0, CLIP, (0,))[0], members)


# --- membership ---


def test_rates_by_counting() -> None:
    random = np.random.default_rng(1)
    members, scores = random.random((4, 50)) < 0.5, random.integers(0, 30, (4, 50)) * 1.0
    inside, outside = scores[members], scores[~members]
    wins = (inside[:, None] > outside).mean() + (inside[:, None] == outside).mean() / 2
    auc, tpr = rates(members, scores)
    assert auc == pytest.approx(wins)
    assert tpr == pytest.approx((inside > np.sort(outside)[-2]).mean())  # 1% of about 100: one


def test_lira_finds_what_a_threshold_does_not() -> None:
    """Records differ more from each other than by their membership."""
    random = np.random.default_rng(2)
    members = random.random((16, 300)) < 0.5
    confidence = random.normal(0, 5, 300) + 2 * members + random.normal(0, 1, (16, 300))
    found = strengths(members, confidence)
    assert found["LiRA AUC"] > 0.88
    assert found["loss AUC"] < 0.65
    assert found["LiRA TPR"] > 5 * found["loss TPR"]
    assert 0 < found["LiRA AUC error"] < 0.02
    members[:, 0] = True
    assert not ratios(members, confidence)[:, 0].any()


# --- what is allowed ---


def test_what_a_pair_allows() -> None:
    pair = ((1.0, 1e-5),)
    assert power(pair, 0.01) == pytest.approx(0.01 * math.e + 1e-5)
    assert power(pair, 0.9) == pytest.approx(1 - (0.1 - 1e-5) / math.e)
    assert power(pair) == pytest.approx(math.e / (1 + math.e), abs=2e-4)  # of delta 0
    assert power((*pair, (0.5, 0.001))) < power(pair)
    assert power(((0.0, 0.0),), 0.3) == pytest.approx(0.3)
    assert (power((), 0.01), power(((1e4, 1e-5),), 0.01)) == (1.0, pytest.approx(1.0))


def test_pairs_are_the_accountants_and_hold_for_a_gaussian() -> None:
    assert guarantee(0.0, 1.0, 1) == ()
    pairs = guarantee(2.0, 1.0, 1)
    assert [delta for _, delta in pairs] == list(DELTAS)
    assert pairs[0][0] == accountant.epsilon({Mechanism(2.0, 1.0): 1}, DELTAS[0])
    best = 1 - 0.2146  # Phi(Phi^-1(0.1) + 1 / 2), the best test of this noise
    assert 1 - best < power(pairs, 0.1) < 0.4


# --- attacks on a sum ---


def test_a_sum_without_noise_gives_digits_away() -> None:
    nothing, found = reconstruct(1, 1, None, 0), reconstruct(1, 1, 0.0, 60)
    assert found[0] > nothing[0] + 0.2
    assert len(reconstruct(0, 3, 5.0, 2)) == 3
    assert guess(0.0, 1) == 1.0
    assert guess(100.0, 4) < 0.5
    assert guess(None, 1) == 0.1
    images, classes = records()
    assert (images.min(), images.max(), classes.argmax(1).tolist()) == (0, 1, list(range(10)))


# --- the command ---


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_report, "QUICK", TINY)
    monkeypatch.setattr(accountant, "multiplier_for", lambda *_, **__: 0.5)
    pairs = (2.0, 1e-5), (1.5, 1e-3)
    monkeypatch.setattr(private_report, "guarantee", lambda z, *_: pairs if z else ())
    monkeypatch.setattr(private_report, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    out = tmp_path / "buys.svg"
    done = CliRunner().invoke(cli, ["audit", str(out), "--privacy", "--quick"])
    assert done.exit_code == 0, done.output
    data = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert data["made_by"] == f"flhe audit --privacy {out} --quick"
    assert [row["training"] for row in data["trained"]] == ["plain", "clipped", "epsilon 8"]
    opened_as = [row["opened"] for row in data["sums"]]
    assert opened_as == ["no sum", "no noise", "z 0.1", "epsilon 8"]
    assert all(row["TPR allowed"] >= row["TPR, every delta"] for row in data["trained"])
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert page in done.output
    assert "| epsilon 8 | 0.5 |" in page
    assert "](buys.svg)" in page
    assert out.stat().st_size > 10_000

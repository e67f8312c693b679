"""The privacy audit: what an attacker sees and may use, what it finds, what is reported; and SSIM."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

from flhe.coding.sensitivity import sensitivity
from flhe.errors import ConfigError
from flhe_lab.audit import images as audit_images
from flhe_lab.audit import report as privacy_audit
from flhe_lab.audit.inversion import Attack, Channel, Guess, Seen, gradient, invert
from flhe_lab.audit.leakage import ALL, NONE, RULES, Audit, Point, Setting, audit, hidden, maps
from flhe_lab.audit.lenet import lenet
from flhe_lab.audit.ssim import C1, ssim
from tests.provision.site import good

SHAPE = (3, 32, 32)
MODEL = lenet(3).double()


@functools.cache
def images() -> audit_images.Images:
    """Of scikit-learn, which takes long to import."""
    return audit_images.samples(2)


def seen(i: int = 1, hide: float = 0.0) -> Seen:
    """The gradient of a sample image; a share of it, drawn at random, is encrypted."""
    image = torch.from_numpy(images().pixels[i : i + 1]).double()
    values = gradient(MODEL, image, torch.from_numpy(images().labels[i : i + 1])).numpy()
    return Seen(values, np.random.default_rng(0).random(values.size) >= hide)


def attack(view: Seen, steps: int, restarts: int = 1) -> Guess:
    return invert(MODEL, view, SHAPE, 10, Attack(steps, restarts), 7)


# --- the attack ---


def test_a_gradient_in_clear_gives_the_image_away() -> None:
    found = attack(seen(), steps=200)
    assert found.label == images().labels[1]
    assert ssim(found.image, images().pixels[1]) > 0.6
    assert np.mean((found.image - images().pixels[1]) ** 2) < 0.04
    assert found.image.shape == SHAPE
    assert 0 <= found.image.min() <= found.image.max() <= 1
    assert 200 <= found.evaluations <= 225  # a line search is not broken off


def test_what_is_encrypted_is_not_used() -> None:
    view = seen(hide=0.4)
    other = np.where(view.clear, view.values, 1e3)
    one, two = attack(view, 8), attack(Seen(other, view.clear), 8)
    assert np.array_equal(one.image, two.image)
    assert one.loss == two.loss
    assert not np.array_equal(one.image, attack(seen(), 8).image)
    nothing = np.zeros(view.values.size, np.bool_)
    start = attack(Seen(view.values, nothing), steps=50, restarts=2)
    assert (start.loss, start.evaluations) == (0.0, 2)
    assert np.array_equal(start.image, attack(Seen(-other, nothing), steps=50).image)
    losses = [attack(seen(), 6, restarts).loss for restarts in (1, 2, 3)]
    assert losses == sorted(losses, reverse=True)  # a start is drawn after the ones before it


# --- what the server sees ---


def test_values_arrive_on_the_quantizer_s_grid() -> None:
    values = seen().values
    largest = np.abs(values).max()
    for bits in (4, 16):
        arrived = Channel(bits).seen(values, np.random.default_rng(0))
        step = largest / (2 ** (bits - 1) - 1)
        assert np.abs(arrived - values).max() <= step * (0.5 + 1e-3)
        assert np.abs(arrived / step - np.round(arrived / step)).max() < 1e-3
    assert not Channel().seen(np.zeros(5), np.random.default_rng(0)).any()
    noise = Channel(24, noise=0.3).seen(np.zeros(200_000), np.random.default_rng(0))
    assert np.abs(noise).mean() == pytest.approx(0.3, rel=0.02)  # Laplace: E |x| = b
    assert (noise**2).mean() == pytest.approx(0.18, rel=0.03)  # and E x^2 = 2 b^2


# --- what is encrypted ---


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 99))
def test_the_highest_scores_are_hidden(scores: list[int], percent: int) -> None:
    order = sorted(range(len(scores)), key=lambda m: (-scores[m], m))
    count = -(-percent * len(scores) // 100)
    expected = set(order[:count])
    assert set(np.flatnonzero(hidden(np.array(scores), percent / 100))) == expected
    assert not hidden(np.array(scores), 0.0).any()
    assert hidden(np.array(scores), 1.0).all()


def test_maps() -> None:
    model = lenet(3)
    found = maps(model, images(), 0)
    assert set(found) == set(RULES) - {"random"}
    assert {m.shape for m in found.values()} == {(sum(p.numel() for p in model.parameters()),)}
    expected = (np.abs(seen(0).values) + np.abs(seen(1).values)) / 2
    assert np.allclose(found["magnitude"], expected, rtol=1e-3, atol=1e-6)
    for of in ("labels", "inputs"):
        batches = [(torch.from_numpy(images().pixels), torch.from_numpy(images().labels))]
        random = torch.Generator().manual_seed(0)
        parts = sensitivity(model, functional.cross_entropy, batches, of=of, random=random)
        assert np.array_equal(found[of], torch.cat([p.reshape(-1) for p in parts.values()]).numpy())


# --- the audit ---

TINY = Setting((0.1, 0.6), Attack(4, 1), seed=5)


def test_every_image_is_attacked_in_every_way() -> None:
    told: list[tuple[int, int, str]] = []
    found = audit(images(), TINY, lambda *args: told.append(args))
    ways = [(NONE, 0.0), (ALL, 1.0), *((rule, share) for share in (0.1, 0.6) for rule in RULES)]
    assert {(p.way, p.share, p.image) for p in found.points} == {
        (*at, i) for at in ways for i in (0, 1)
    }
    assert [done for done, _, _ in told] == list(range(20))
    for point in found.points:
        guess = found.guesses[point.way, point.share, point.image]
        original = images().pixels[point.image]
        assert (point.ssim, point.mse) == (ssim(guess, original), np.mean((guess - original) ** 2))
    assert audit(images(), TINY).points == found.points
    noisy = audit(images(), replace(TINY, channel=Channel(noise=0.5)))
    assert noisy.of(ALL, 1.0) == found.of(ALL, 1.0)
    assert noisy.of(NONE, 0.0) != found.of(NONE, 0.0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "audit.svg"
    monkeypatch.setattr(privacy_audit, "QUICK_ATTACK", Attack(2, 1))
    shown = good("audit", out, "--quick", "--noise", "0.1")
    assert out.read_text(encoding="utf-8").count("SSIM") >= 6 * 2
    assert "most sensitive by labels" in (tmp_path / "audit_curve.svg").read_text(encoding="utf-8")
    data = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert data["made_by"]["command"] == f"flhe audit {out}"
    setting = data["setting"]
    assert (setting["seed"], setting["channel"]["noise"]) == (0, 0.1)
    assert setting["shares"] == [0.1, 0.5]
    assert [image["name"] for image in data["images"]] == ["china.jpg", "digits"]
    assert len(data["points"]) == 2 * len(data["means"]) == 2 * (2 + 4 * 2)
    said = " ".join(shown.split())
    assert all(line in said for line in data["words"])


def test_words() -> None:
    """A curve that rises again is recognizable up to its last such share."""
    curves = {
        "random": (0.9, 0.6, 0.1),
        "labels": (0.4, 0.1, 0.3),
        "inputs": (0.3, 0.2, 0.0),
        "magnitude": (0.1, 0.05, 0.0),
    }
    shares = (0.1, 0.5, 0.9)
    likeness = {(NONE, 0.0): 0.95, (ALL, 1.0): 0.01}
    for rule, values in curves.items():
        likeness |= {(rule, s): v for s, v in zip(shares, values, strict=True)}
    points = [Point(way, s, 0, v, 1 - v, 0.0, 1, True) for (way, s), v in likeness.items()]
    found = Audit(Setting(shares), audit_images.samples(1), tuple(points), {}, 0.0)
    words = privacy_audit.words(found)
    assert words[:6] == [
        "none encrypted: reconstructed.",
        "10% encrypted, random: reconstructed.",
        "10% encrypted, most sensitive by labels: recognizable.",
        "10% encrypted, most sensitive by inputs: recognizable.",
        "10% encrypted, largest gradients: traces.",
        "all encrypted: nothing.",
    ]
    assert "first, by SSIM: largest gradients 0.10, most sensitive by inputs 0.30" in words[6]
    assert "most sensitive by labels: recognizable up to 90%; tried: up to 90%." in words
    assert "largest gradients: never recognizable; tried: up to 90%." in words


# --- images ---


def test_sample_images() -> None:
    found = audit_images.samples(8)
    assert (found.pixels.shape, found.pixels.dtype) == ((8, *SHAPE), np.float32)
    assert (found.pixels.min(), found.pixels.max()) == (0.0, 1.0)
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(found.credits) == 3
    for count in (0, 9):
        with pytest.raises(ConfigError, match="1 to 8"):
            audit_images.samples(count)


# --- refusals ---


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"noise": -0.1}, "at least 0"),
        ({"noise": np.nan}, "at least 0"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        privacy_audit.run(tmp_path / "audit.svg", **{"quick": True, **given})
    with pytest.raises(ConfigError, match=r"a figure is a \.svg"):
        privacy_audit.run(tmp_path / "audit.pdf")
    assert not list(tmp_path.iterdir())


# --- SSIM: against scikit-image, and closed forms ---

INDEX = np.arange(3 * 32 * 40).reshape(3, 32, 40)
NOISE = (INDEX * INDEX * 7919 % 1009) / 1008
NEAR = np.clip(0.8 * NOISE + 0.1 + 0.1 * np.sin(INDEX / 17), 0, 1)
SLOPE = (INDEX % 40 + INDEX // 40 % 32) / 70


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (NOISE, NOISE, 1.0),
        (NOISE, NEAR, 0.9386353556303794),
        (NEAR, SLOPE, 0.016219989911814916),
        (SLOPE, 1 - SLOPE, -0.2878996508105227),
        (NOISE, NOISE[:, ::-1], 0.02794992261628188),
    ],
)
def test_scikit_image_agrees(
    one: NDArray[np.float64], other: NDArray[np.float64], expected: float
) -> None:
    """Its `structural_similarity`, gaussian_weights=True, sigma=1.5, use_sample_covariance=False."""
    assert ssim(one, other) == pytest.approx(expected, abs=1e-12)
    assert ssim(other, one) == pytest.approx(expected, abs=1e-12)


def test_flat_images_differ_by_their_means_alone() -> None:
    one, other = np.full((1, 11, 11), 0.25), np.full((1, 11, 11), 0.75)
    expected = (2 * 0.25 * 0.75 + C1) / (0.25**2 + 0.75**2 + C1)
    assert ssim(one, other) == pytest.approx(expected, abs=1e-12)

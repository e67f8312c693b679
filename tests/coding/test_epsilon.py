"""Epsilon accounting: the theorem by hand, the remarks with and without their assumption, words."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding.epsilon import LayerCount, Release, layer_counts, spent
from flhe.coding.laplace import Scope
from flhe.coding.privacy_report import PrivacyReport
from flhe.errors import ConfigError

LAYERS = (LayerCount("conv", 100, 10, 0.5), LayerCount("fc", 300, 0, 2.0))


def layers(p: float, n: int = 1000, alpha: float = 0.5) -> tuple[LayerCount, ...]:
    return (LayerCount("all", n, round(p * n), alpha),)


# --- Theorem 3.11 ---


def test_the_sum_over_clear_parameters_by_hand() -> None:
    sensitivities = np.array([0.5, 2.0, 0.25, 1.0])
    clear = np.array([True, False, True, False])
    assert spent(sensitivities, clear, 0.5) == 1.5
    assert spent(sensitivities, ~clear, 0.5) == 6.0
    assert spent(sensitivities, np.zeros(4, bool), 0.5) == 0


def test_the_worst_case_by_hand() -> None:
    release = Release(LAYERS, 0.1)
    assert release.epsilon == pytest.approx(2 * (90 * 0.5 + 300 * 2.0) / 0.1)
    assert release.everything == pytest.approx(2 * (100 * 0.5 + 300 * 2.0) / 0.1)
    assert (release.parameters, release.selected, release.ratio) == (400, 10, 0.025)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 10)), min_size=1, max_size=6))
def test_the_worst_case_is_the_theorem_for_the_largest_sensitivities(
    shapes: list[tuple[int, float]],
) -> None:
    rng = np.random.default_rng(len(shapes))
    segments, alphas, at = [], [], 0
    for i, (size, alpha) in enumerate(shapes):
        segments.append((f"layer {i}", at, at + size))
        alphas.append(alpha)
        at += size
    mask = rng.random(at) < 0.4
    coords = np.flatnonzero(mask).astype(np.uint32)
    release = Release(layer_counts(segments, alphas, coords), 0.3)
    chosen = [int(np.count_nonzero(mask[start:stop])) for _, start, stop in segments]
    assert [layer.selected for layer in release.layers] == chosen
    assert Release(layer_counts(segments, alphas), 0.3).epsilon == release.everything
    worst = 2 * np.repeat(alphas, [size for size, _ in shapes])
    assert release.epsilon == pytest.approx(spent(worst, ~mask, 0.3))
    assert release.everything == pytest.approx(spent(worst, np.ones(at, bool), 0.3))
    smaller = worst * rng.random(at)
    assert spent(smaller, ~mask, 0.3) <= release.epsilon * (1 + 1e-12)


# --- Remarks 3.12 to 3.14 ---


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_remarks_hold_for_uniform_sensitivities(p: float) -> None:
    n, scale = 200_000, 2.0
    sensitivities = np.sort(np.random.default_rng(0).random(n))
    chosen = np.zeros(n, bool)
    chosen[n - round(p * n) :] = True
    random = np.random.default_rng(1).permutation(chosen)
    release = Release((LayerCount("all", n, round(p * n), 0.5),), scale)
    # Thresholds of 0.5 bound differences by 1, and uniform ones are half of that in the mean.
    assert spent(sensitivities, np.ones(n, bool), scale) == pytest.approx(
        release.everything / 2, rel=0.01
    )
    assert spent(sensitivities, ~random, scale) == pytest.approx(release.random / 2, rel=0.02)
    assert spent(sensitivities, ~chosen, scale) == pytest.approx(release.sensitive / 2, rel=0.02)


def test_the_last_remark_fails_for_equal_sensitivities() -> None:
    equal, clear = np.ones(1000), np.arange(1000) < 500
    release = Release(layers(0.5), 1.0)
    assert spent(equal, clear, 1.0) == release.random == 500
    assert release.sensitive == 250
    assert release.epsilon == release.random


# --- who sees what ---


def test_encrypting_all_costs_nothing_against_the_server() -> None:
    for scale in (None, 0.1):
        release = Release(layers(1.0), scale)
        assert release.epsilon == release.random == release.sensitive == 0
        assert PrivacyReport.of(release, 5).warning() is None


def test_readers_of_the_sum_see_what_has_no_noise() -> None:
    clear, everything = Release(layers(0.1), 0.1), Release(layers(0.1), 0.1, "all")
    assert clear.epsilon == everything.epsilon
    assert clear.epsilon_readers == math.inf
    assert everything.epsilon_readers == everything.everything
    assert Release(layers(0.0), 0.1).epsilon_readers == everything.everything


def test_without_noise_or_clipping_there_is_none() -> None:
    for release in (Release(layers(0.5)), Release(layers(0.5, alpha=math.inf), 1.0)):
        assert release.epsilon == release.everything == release.random == math.inf


# --- releases ---


def test_releases_add_up() -> None:
    first, second = Release(layers(0.5), 0.1), Release(layers(0.5, alpha=0.25), 0.1)
    report = PrivacyReport.of(first, 3).after(second).after(second, 0)
    assert report.releases == 4
    assert report.epsilon == pytest.approx(3 * first.epsilon + second.epsilon)
    assert report.release == second
    nothing = PrivacyReport.of(first, 0)
    assert (nothing.releases, nothing.epsilon) == (0, 0)
    with pytest.raises(ConfigError, match="at least 0"):
        report.after(first, -1)


def test_one_release_without_noise_is_never_made_up_for() -> None:
    report = PrivacyReport.of(Release(layers(0.5))).after(Release(layers(0.5), 1e9), 100)
    assert report.epsilon == math.inf
    assert "earlier ones left without noise" in str(report.warning())


def test_what_was_spent_is_still_told_when_all_is_encrypted() -> None:
    report = PrivacyReport.of(Release(layers(0.5), 0.1)).after(Release(layers(1.0), 0.1))
    assert report.release.epsilon == 0
    assert f"{report.epsilon:,.0f} for 2 so far" in str(report.warning())


# --- words and data ---


@pytest.mark.parametrize(
    ("release", "said", "not_said"),
    [
        (Release(layers(0.1)), "90% of the parameters leave in clear without noise", "epsilon"),
        (Release(layers(0.1)), "no differential privacy guarantee, whatever selection", "epsilon"),
        (Release(layers(0.1, alpha=math.inf), 1.0), "not clipped", "without noise"),
        (Release(layers(0.1), 0.1), "An epsilon in the thousands means nothing", "next to nothing"),
        (Release(layers(0.1), 0.1), "epsilon = 9,000 a release, 9,000 for 1", "no differential"),
        (Release(layers(0.1), 50.0), "above 10 promises next to nothing", "thousands"),
        (Release(layers(0.1), 1e4), "epsilon = 0.09 a release", "nothing"),
    ],
)
def test_the_warning(release: Release, said: str, not_said: str) -> None:
    warning = PrivacyReport.of(release).warning()
    assert warning is not None
    assert said in warning
    assert not_said not in warning


@pytest.mark.parametrize("scope", ["clear", "all"])
@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_data_is_json_and_lines_are_text(p: float, scale: float | None, scope: Scope) -> None:
    report = PrivacyReport.of(Release(layers(p), scale, scope), 2)
    data = report.to_data()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["epsilon"] == (report.epsilon if math.isfinite(report.epsilon) else None)
    assert (data["releases"], data["parameters"], data["selected"]) == (2, 1000, round(1000 * p))
    lines = report.lines()
    assert ("no guarantee" in lines.values()) == (None in _numbers(data))
    assert f"{100 * p:g}% encrypted" in lines["parameters"]


def _numbers(data: dict[str, object]) -> list[object]:
    remarks = data["remarks"]
    assert isinstance(remarks, dict)
    return [data[k] for k in data if k.startswith("epsilon")] + list(remarks.values())


# --- refusals ---


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="0 to all"):
        LayerCount("fc", 10, 11, 1.0)
    with pytest.raises(ConfigError, match="0 to all"):
        LayerCount("fc", 10, -1, 1.0)
    for alpha in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="positive"):
            LayerCount("fc", 10, 1, alpha)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="finite and positive"):
            Release(LAYERS, scale)
        with pytest.raises(ConfigError, match="finite and positive"):
            spent(np.ones(2), np.ones(2, bool), scale)


@pytest.mark.parametrize(
    ("sensitivities", "clear", "said"),
    [
        (np.ones(3), np.ones(4, bool), "one shape"),
        (np.ones(3), np.ones(3), "bool"),
        (-np.ones(3), np.ones(3, bool), "negative or NaN"),
        (np.full(3, math.nan), np.ones(3, bool), "negative or NaN"),
    ],
)
def test_sensitivities_that_it_does_not_take(
    sensitivities: np.ndarray, clear: np.ndarray, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        spent(sensitivities, clear, 1.0)

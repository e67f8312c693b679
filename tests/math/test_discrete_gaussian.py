"""Exact discrete Gaussians: against the true distribution, and against their own exact arithmetic."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe.math import discrete_gaussian
from flhe.math.discrete_gaussian import MAX_VARIANCE, MIN_VARIANCE, draw


def seeded(seed: int) -> Callable[[int], bytes]:
    """A random source that repeats itself."""
    numbers = itertools.count()

    def random(count: int) -> bytes:
        name = f"{seed}/{next(numbers)}".encode()
        return hashlib.shake_256(name).digest(count)

    return random


def probabilities(variance: int, most: int) -> np.ndarray:
    """Of -most to most, by the definition; what lies beyond is nothing to 64 bits."""
    ys = np.arange(-most, most + 1, dtype=np.float64)
    weights = np.exp(-(ys**2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize("variance", [16, 17, 40, 400, 2500])
def test_samples_have_the_distribution(variance: int) -> None:
    """Chi-square over all values that are expected five times or more, at 1 in 10,000."""
    count, most = 200_000, math.ceil(12 * math.sqrt(variance))
    samples = draw(count, variance, seeded(variance))
    assert int(np.abs(samples).max()) <= most
    expected = count * probabilities(variance, most)
    seen = np.bincount(samples + most, minlength=2 * most + 1)
    often = expected >= 5
    counts = np.append(seen[often], seen[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    square = float(((counts - wanted) ** 2 / wanted).sum())
    freedom = len(counts) - 1
    # Wilson and Hilferty's approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert square < bound


@pytest.mark.parametrize("deviation", [4, 1000, 123_457, 1 << 26])
def test_moments(deviation: int) -> None:
    """Mean, variance, skewness and kurtosis of wide ones, within five of their standard errors."""
    count = 300_000
    x = draw(count, deviation**2, seeded(deviation)) / np.float64(deviation)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * math.sqrt(spread / count), power


@pytest.mark.parametrize("variance", [16, 99, 12_345, 10**10, MAX_VARIANCE])
@pytest.mark.parametrize("slack", [0.01, 0.5])
def test_exact_arithmetic_gives_the_same_samples(variance: int, slack: float) -> None:
    """A loop that leaves much more to it makes no other sample of the same words."""
    fast, exact = (
        draw(500, variance, seeded(1), slack=s) for s in (discrete_gaussian.SLACK, slack)
    )
    np.testing.assert_array_equal(fast, exact)


def test_what_64_bits_do_not_decide_takes_further_bits() -> None:
    """A word right at the probability: the bits behind it decide, either way."""
    exactly = int(Context(prec=60).exp(Decimal(-1)) * 2**64)
    for more, below in ((0, True), ((1 << 64) - 1, False)):
        asked = []

        def further(bits: int = more, asked: list[int] = asked) -> int:
            asked.append(bits)
            return bits

        assert discrete_gaussian._is_below(exactly, 1, 1, further) is below
        assert asked
    assert discrete_gaussian._is_below(exactly - 1, 1, 1, pytest.fail)
    assert not discrete_gaussian._is_below(exactly + 1, 1, 1, pytest.fail)
    assert not discrete_gaussian._is_below(1, 10**6, 1, pytest.fail)


def test_every_vector_has_a_key_of_its_own() -> None:
    """No two draws are alike."""
    assert draw(64, 10**6).tolist() != draw(64, 10**6).tolist()


@pytest.mark.parametrize("variance", [MIN_VARIANCE - 1, MAX_VARIANCE + 1, 100.0, True])
def test_other_variances_are_refused(variance: int) -> None:
    with pytest.raises(ConfigError, match="takes an integer"):
        draw(1, variance)

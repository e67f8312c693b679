"""Laplace noise: word by word against decimals, distribution, the grid, what two inputs differ by."""

from __future__ import annotations

import decimal
import math
import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.laplace import MAX_STEPS, Laplace
from flhe.errors import ConfigError, RangeError
from flhe.math import sampling_kernels
from flhe.math.keystream import CHUNK
from tests.reference.wire import word
from tests.scripted import scripted

KEY = bytes(range(32))
ONES = (1 << 64) - 1
PIECE = CHUNK // 16


def fixed(size: int) -> bytes:
    return KEY[:size]


def magnitude(first: int, second: int) -> decimal.Decimal:
    """-ln(u) of the exponent that the second word has and the mantissa that the first has."""
    with decimal.localcontext(decimal.Context(prec=60)):
        zeros = 64 - (second | 1).bit_length()
        mantissa = 1 + (decimal.Decimal(first >> 12) + decimal.Decimal("0.5")) / 2**52
        return -(mantissa / 2 ** (zeros + 1)).ln()


def expected(x: float, alpha: float, scale: float, first: int, second: int) -> float:
    """The noised value, in rational numbers."""
    grid = Fraction(1, 1024)
    while grid * 1024 > Fraction(scale):
        grid /= 2
    while grid * 2048 <= Fraction(scale):
        grid *= 2
    most = Fraction(alpha) // grid
    step = min(max(round(Fraction(x) / grid), -most), most)
    size = magnitude(first, second) * decimal.Decimal(float(Fraction(scale) / grid))
    noise = int(size.to_integral_value()) * (1 if second & 1 else -1)
    return float(np.float32(min(max(float((step + noise) * grid), -alpha), alpha)))


# --- value by value ---


@settings(deadline=None, max_examples=80)
@given(
    st.floats(1e-4, 1e3),
    st.floats(1e-3, 1e3),
    st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=20),
)
def test_a_value_is_what_its_block_says(scale: float, alpha: float, shares: list[float]) -> None:
    x = (np.array(shares) * alpha).astype(np.float32)
    out = x.copy()
    Laplace(scale).add(out, alpha, fixed)
    pairs = [(word(KEY, 0, 2 * i), word(KEY, 0, 2 * i + 1)) for i in range(x.size)]
    assert out.tolist() == [
        expected(float(v), alpha, scale, *w) for v, w in zip(x, pairs, strict=True)
    ]


def test_words_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, ones, and every number of leading zeros: magnitudes up to 64 ln 2, nothing infinite."""
    firsts = (0, (1 << 12) - 1, 1 << 12, 1 << 63, ONES)
    seconds = [0, 1, ONES, ONES - 1, *(1 << k | sign for k in range(1, 64) for sign in (0, 1))]
    pairs = [(a, b) for a in firsts for b in seconds]
    out = np.zeros(len(pairs), np.float32)
    scripted(monkeypatch, lambda _, i: pairs[i // 2][i % 2])
    Laplace(1.25).add(out, 1e6)
    assert out.tolist() == [expected(0.0, 1e6, 1.25, *w) for w in pairs]
    largest = 1.25 * 64 * math.log(2)
    assert abs(float(np.abs(out).max()) - largest) < 1e-3
    assert math.copysign(1, out[0]) == -1
    assert out[0] == -out[1]


def test_magnitudes_are_as_exact_as_the_documentation_says() -> None:
    """Within 2**-46: of a step, that is 2**-35 on either side of it."""
    rng = np.random.default_rng(0)
    mantissas = [0, 1, 1 << 51, (1 << 52) - 1, *map(int, rng.integers(0, 1 << 52, 1000))]
    for i, mantissa in enumerate(mantissas):
        first, second = mantissa << 12, 1 << i % 64 | 1
        made = sampling_kernels._sample(np.uint64(first), np.uint64(second))
        assert abs(decimal.Decimal(float(made)) - magnitude(first, second)) < 2**-46
        m = 1 + mantissa / 2**52
        assert abs(sampling_kernels._log(m) - float(decimal.Decimal(m).ln())) < 2**-50


# --- thresholds, positions, keys ---


def test_runs_have_thresholds_of_their_own() -> None:
    runs = ((0, 100, 0.5), (100, 260, 2.0), (260, 300, 0.125))
    x = np.linspace(-3, 3, 300, dtype=np.float32)
    spare = np.concatenate([np.arange(0, 90, 7), np.arange(270, 280)]).astype(np.uint32)
    others = np.setdiff1d(np.arange(300), spare)
    whole, sparing = x.copy(), x.copy()
    beyond = Laplace(0.01).add(whole, runs, fixed)
    assert beyond == sum(np.count_nonzero(np.abs(x[a:b]) > alpha) for a, b, alpha in runs)
    for first, stop, alpha in runs:
        alone = x.copy()
        Laplace(0.01).add(alone, alpha, fixed)  # the same noise: a position has a block of its own
        assert np.array_equal(alone[first:stop], whole[first:stop])
        assert np.abs(whole[first:stop]).max() <= alpha
    assert Laplace(0.01).add(sparing, runs, fixed, spare=spare) == beyond
    assert np.array_equal(sparing[spare], x[spare])
    assert np.array_equal(sparing[others], whole[others])


def test_pieces_make_the_whole() -> None:
    size = 2 * PIECE + 77
    x = np.random.default_rng(0).normal(0, 0.1, size).astype(np.float32)
    whole, parts = x.copy(), x.copy()
    runs = tuple((a, b, 0.1) for a, b in pairwise([0, 1, 999, PIECE, PIECE + 6, size]))
    counted = Laplace(0.01).add(whole, 0.1, fixed)
    assert Laplace(0.01).add(parts, runs, fixed) == counted > 0
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(
    ("value", "size", "beyond"),
    [(0.1, 10, 0), (0.101, 10, 10), (0.0, 0, 0)],  # float32(0.1) is larger than 0.1
)
def test_values_at_the_threshold_do_not_count_as_beyond(
    value: float, size: int, beyond: int
) -> None:
    assert Laplace(1.0).add(np.full(size, value, np.float32), 0.1) == beyond


def test_every_vector_has_a_key_of_its_own() -> None:
    asked: list[int] = []

    def random(size: int) -> bytes:
        asked.append(size)
        return bytes([len(asked)]) * size

    first, second, third = (np.zeros(64, np.float32) for _ in range(3))
    laplace = Laplace(1.0)
    laplace.add(first, 9.0, random)
    laplace.add(second, 9.0, random)
    laplace.add(third, 9.0)
    assert asked == [32, 32]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, third)


# --- refusals ---


MOST = MAX_STEPS * Laplace(1e-12).grid


@pytest.mark.parametrize(
    ("error", "says", "scale", "alpha", "value"),
    [
        *(
            (RangeError, "NaN or infinity", 1.0, 1.0, bad)
            for bad in (math.nan, math.inf, -math.inf)
        ),
        *((ConfigError, "threshold", 1.0, bad, 0.5) for bad in (0.0, -1.0, math.nan, math.inf)),
        (ConfigError, re.escape(f"{MOST:g}"), 1e-12, 2 * MOST, 0.5),
        (ConfigError, "do not cover", 1.0, (), 0.5),
        (ConfigError, "do not cover", 1.0, ((0, 50, 1.0),), 0.5),
        (ConfigError, "do not cover", 1.0, ((0, 50, 1.0), (60, 100, 1.0)), 0.5),
        (ConfigError, "do not cover", 1.0, ((0, 60, 1.0), (50, 100, 1.0)), 0.5),
        (ConfigError, "do not cover", 1.0, ((50, 100, 1.0), (0, 50, 1.0)), 0.5),
    ],
)
def test_values_and_thresholds_that_cannot_work(
    error: type[Exception], says: str, scale: float, alpha: Any, value: float
) -> None:
    Laplace(1e-12).add(np.zeros(3, np.float32), MOST)
    x = np.full(100, 0.5, np.float32)
    x[50] = value
    with pytest.raises(error, match=says):
        Laplace(scale).add(x, alpha)
    assert np.all(x[:50] == 0.5)


def test_a_random_source_that_falls_short() -> None:
    with pytest.raises(ConfigError, match="31 bytes"):
        Laplace(1.0).add(np.zeros(4, np.float32), 1.0, lambda size: bytes(31))

"""DiscreteGaussian and ClipNorm: what noise hides, and that nothing changes a sum by more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding.base import Mechanism, Plain
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import (
    MAX_INFLATION,
    MOST_MEMBERS,
    MOST_VALUES,
    TAIL,
    DiscreteGaussian,
    Grid,
)
from flhe.coding.flatten import layout_of
from flhe.coding.quantize import Quantize
from flhe.coding.registry import CODECS
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, ProtocolError
from flhe.math import discrete_gaussian
from tests.math.test_discrete_gaussian import seeded

RECORD: dict[str, Any] = {"unit": "record", "sampling": 0.1, "divisor": 100.0, "bits": 28}
ONE = np.array([1, 1])


def private(**how: Any) -> Chain:
    """The chain of a member, or of records."""
    noise = DiscreteGaussian(**{"l2": 1.0, "multiplier": 1.0, **how})
    return chain(ClipNorm(noise.l2), noise) if noise.of_members else chain(noise)


def begun(codec: Chain, values: np.ndarray) -> None:
    """Begin with a model of one array."""
    codec.init(layout_of({"w": values}))


def without_noise(codec: DiscreteGaussian, x: np.ndarray) -> tuple[np.ndarray, Any]:
    """The integers of `x`, as they were before noise was added, and the grid."""
    state = codec.init(layout_of({"w": x}))
    variance = codec._variance(state.shared, codec.honest)
    noise = discrete_gaussian.draw(x.size, variance, seeded(7))
    encoded, _ = replace(codec, random=seeded(7)).encode(Plain(x, ONE), state)
    return encoded.values.astype(np.int64) - noise, state.shared


sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**32 - 1)


def vector(size: int, seed: int, norm: float) -> np.ndarray:
    """A random direction of that norm; some have few coordinates that are not zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * (rng.random(size) < rng.choice([0.01, 1.0]))
    x[rng.integers(size)] += 1e-3
    return np.float32(norm * (1 - 2**-20)) * (x / np.linalg.norm(x)).astype(np.float32)


@given(sizes, seeds, st.integers(12, 28), st.floats(0.1, 8))
def test_no_member_changes_a_sum_by_more_than_noise_hides(
    size: int, seed: int, bits: int, norm: float
) -> None:
    """The integers of an update are within D, and next to the update."""
    codec = DiscreteGaussian(norm, 0.5, bits=bits)
    try:
        codec.grid(size)
    except MisfitError:
        return
    x = vector(size, seed, norm)
    integers, grid = without_noise(codec, x)
    assert math.sqrt(sum(int(i) ** 2 for i in integers)) <= grid.sensitivity
    assert np.abs(integers - x / np.float64(grid.step)).max() <= 1 + 1e-6


@given(sizes, seeds, st.integers(16, 28), st.floats(0.1, 8))
def test_no_record_changes_a_sum_by_more_than_noise_hides(
    size: int, seed: int, bits: int, norm: float
) -> None:
    """Two batches that differ by a record of the largest norm."""
    codec = DiscreteGaussian(norm, 0.5, **{**RECORD, "bits": bits})
    try:
        grid = codec.grid(size)
    except MisfitError:
        return
    others = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    # On a grid finer than float32's, so that the sums of floats are exact.
    others = np.round(others / grid.step).astype(np.float32) * np.float32(grid.step)
    record = vector(size, seed + 1, norm * (1 - 1e-3))
    one, two = (without_noise(codec, x.astype(np.float32))[0] for x in (others, others + record))
    assert math.sqrt(sum(int(i) ** 2 for i in one - two)) <= grid.sensitivity


@pytest.mark.parametrize("unit", ["member", "record"])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0])
def test_honest_members_together_make_what_is_promised(unit: str, multiplier: float) -> None:
    """The variance of k members is (z D)^2 or more, by less than k steps."""
    how = RECORD if unit == "record" else {}
    for honest in (1, 2, 3, 17, MOST_MEMBERS):
        codec = DiscreteGaussian(2.0, multiplier, **how).counting_on(honest)
        grid = codec.grid(10_000)
        promised = (multiplier * grid.sensitivity) ** 2
        assert promised <= honest * codec._variance(grid, honest) < promised + honest


@pytest.mark.parametrize("how", [{}, RECORD], ids=str)
def test_a_weight_says_nothing_of_the_data(how: dict[str, Any]) -> None:
    """Nothing adds noise to it: whatever an app counts, 1 is sent, of an empty batch too."""
    codec, x, sent = private(**how), np.zeros(5, np.float32), set[bytes]()
    state = codec.init(layout_of({"w": x}))
    for count in (0, 1, 10**6):
        encoded, _ = codec.encode(Plain(x, np.array([1, count])), state)
        opened, _ = codec.decode(encoded, [0], state)
        np.testing.assert_array_equal(opened.extras, [1, 1])
        sent.add(encoded.extras.tobytes())
    assert len(sent) == 1


@given(st.integers(12, 32), st.floats(0.05, 50), st.sampled_from([1, 100, 10_000, 1_200_000]))
def test_integers_have_room_for_value_and_noise(bits: int, multiplier: float, size: int) -> None:
    """12 standard deviations of all the noise; or the bits are refused, before anything is sent."""
    codec = DiscreteGaussian(1.0, multiplier, bits=bits)
    try:
        grid = codec.grid(size)
    except MisfitError:
        return
    deviation = multiplier * grid.sensitivity
    assert grid.reach + TAIL * deviation < Quantize(bits).levels
    assert grid.sensitivity <= MAX_INFLATION * 1.0 / grid.step
    assert deviation**2 / MOST_MEMBERS >= 15


@pytest.mark.parametrize("unit", ["member", "record"])
@pytest.mark.parametrize("bits", [16, 24, 31, 32])
def test_a_small_model_finds_a_grid_with_any_bits(unit: Any, bits: int) -> None:
    """The finest one has more noise than can be drawn exactly: a coarser one serves."""
    noise = DiscreteGaussian(1.0, 1.0, unit, divisor=float(unit == "record"), bits=bits)
    assert noise._variance(noise.grid(1000), 1) <= discrete_gaussian.MAX_VARIANCE


def test_rounding_has_no_bias() -> None:
    """Draws of 16 bits lie in the middle of their cells, so a value this near zero always is one."""
    codec, small = DiscreteGaussian(1.0, 1.0), Quantize(24).offset / 2
    step = codec.grid(1).step
    for sign in (-1, 1):
        x = np.full(1 << 21, sign * small * step, np.float32)
        assert not codec._rounded(x, Grid(step, math.inf, 1.0)).any()


@pytest.mark.parametrize("unit", ["member", "record"])
def test_more_values_than_epsilon_is_proven_for_are_refused(unit: Any) -> None:
    noise = DiscreteGaussian(1.0, 1.0, unit, divisor=float(unit == "record"), bits=30)
    assert noise.grid(MOST_VALUES).sensitivity > noise.grid(MOST_VALUES // 2).sensitivity
    with pytest.raises(MisfitError, match="proven for up to 4294967296"):
        noise.grid(MOST_VALUES + 1)


def test_decoding_divides_by_senders_or_by_what_was_said() -> None:
    x = vector(2000, 1, 1.0)
    for how, factor in (({}, 1 / 3), (RECORD, 0.01)):
        codec = private(multiplier=0.01, **how)
        state = codec.init(layout_of({"w": x}))
        parts = [codec.encode(Plain(x, ONE), state)[0] for _ in range(3)]
        total = Plain(
            sum(p.values.astype(np.int64) for p in parts),
            sum(p.extras.astype(np.int64) for p in parts),
        )
        mean, _ = codec.decode(total, (0, 1, 2), state)
        assert mean.values.dtype == np.float32
        off = mean.values - 3 * x * factor
        assert off.std() == pytest.approx(math.sqrt(3) * 0.01 * factor, rel=0.1)
        with pytest.raises(ProtocolError, match="one update from each"):
            codec.decode(total, (0, 1), state)


def test_an_update_is_scaled_to_its_norm_and_no_further() -> None:
    state = ClipNorm(2.0).init(layout_of({"w": np.zeros(3, np.float32)}))
    for scale in (0.5, 1.0, 30.0):
        x = np.array([3, 0, -4], np.float32) / 5 * np.float32(scale)
        out = ClipNorm(2.0).encode(Plain(x, ONE), state)[0].values
        assert np.linalg.norm(out.astype(np.float64)) <= 2.0
        np.testing.assert_allclose(out, x * min(1.0, 2.0 / scale), rtol=1e-5)
    lost = ClipNorm(2.0).encode(Plain(np.array([np.nan, 1], np.float32), ONE), state)[0].values
    assert lost.tolist() == [0, 0]  # a refusal would tell of the data


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
def test_what_a_norm_does_not_bound_is_sent_as_zeros(value: float) -> None:
    """A refusal would tell of the data, and nothing is tried for ever."""
    x = np.full(1000, value, np.float32)
    integers, _ = without_noise(DiscreteGaussian(1.0, 1.0), x)
    assert not integers.any()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: chain(DiscreteGaussian(1.0, 1.0)), "put ClipNorm"),
        (lambda: chain(ClipNorm(2.0), DiscreteGaussian(1.0, 1.0)), "put ClipNorm"),
        (lambda: chain(Clip(0.1), DiscreteGaussian(1.0, 1.0)), "put ClipNorm"),
        (lambda: private(sampling=0.5), "members are not sampled"),
        (lambda: private(**{**RECORD, "divisor": 0.0}), "divisor"),
        (lambda: private(unit="site"), "unit"),
        (lambda: private(multiplier=0.0), "multiplier"),
        (lambda: private(multiplier=math.nan), "multiplier"),
        (lambda: private(l2=math.inf), "alpha|l2|ClipNorm"),
        (lambda: private(bits=11), "bits=11: 12 to 32"),
        (lambda: private(**{**RECORD, "sampling": 1.5}), "sampling"),
        (lambda: ClipNorm(0.0), "ClipNorm"),
        (lambda: begun(private(bits=12), np.zeros(100_000, np.float32)), "use 13 bits or more"),
        (lambda: begun(private(multiplier=0.013, bits=15), np.zeros(1, np.float32)), "use 16 bits"),
        (lambda: DiscreteGaussian(1.0, 999.0, **RECORD).grid(10**9), "not so many bits.*largest"),
        (lambda: begun(private(), np.zeros(1, np.int64)), "integer buffers"),
        (lambda: chain(Clip(1.0), Quantize(16), DiscreteGaussian(1.0, 1.0)), "takes reals"),
        (lambda: chain(ClipNorm(1.0), Clip(0.1), DiscreteGaussian(1.0, 1.0)), "nothing else"),
        (lambda: chain(ClipNorm(1.0), Weigh(9), DiscreteGaussian(1.0, 1.0)), "nothing else"),
        (lambda: chain(Clip(0.1), DiscreteGaussian(1.0, 1.0, **RECORD)), "stands alone"),
        (lambda: chain(Weigh(9), DiscreteGaussian(1.0, 1.0, **RECORD)), "stands alone"),
        (lambda: chain(Clip(1.0), Quantize(16), ClipNorm(1.0)), "takes reals"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


@pytest.mark.parametrize("codec", [*private(bits=20).codecs, *private(**RECORD).codecs])
def test_terms_carry_it_exactly(codec: Any) -> None:
    stored = dict(codec.parameters())
    assert CODECS.named(stored.pop("name")).from_parameters(stored) == codec


def test_a_chain_says_what_its_sums_give_away() -> None:
    assert private(multiplier=2.0).mechanism == Mechanism(2.0, 1.0, of_members=True)
    assert private(**RECORD).mechanism == Mechanism(1.0, 0.1)
    assert chain(Clip(1.0), Quantize(16)).mechanism is None

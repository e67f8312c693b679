"""TopK: its choice against a sorting reference, its residuals, its schedule, its refusals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Plain, State
from flhe.coding.flatten import Entry, Layout
from flhe.coding.spaces import Integers, Reals
from flhe.coding.sparsify import ROUNDS, Progress, TopK, merged

NONE = np.empty(0, np.int64)
EXTRAS = np.array([1, 17], np.int64)
floats = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5])


def layout(*sizes: int) -> Layout:
    return Layout(tuple(Entry(f"layer{i}", (n,), "float32") for i, n in enumerate(sizes)))


def vector(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def reference(u: list[float], share: Fraction) -> list[int]:
    """The largest magnitudes, of equal ones the first, by sorting."""
    order = sorted(range(len(u)), key=lambda i: (-abs(u[i]), i))
    return sorted(order[: math.ceil(share * len(u))])


def check(codec: TopK, sizes: list[int], x: NDArray[np.float32], old: Any = None) -> Plain:
    """Encode, and hold the outcome to the reference and to the law of residuals."""
    state = codec.init(layout(*sizes))
    before = None if old is None else old.copy()
    encoded, after = codec.encode(Plain(x, EXTRAS), State(state.shared, old))
    u = x if old is None else x + old
    wanted, at = [], 0
    for size in sizes:
        chosen = reference(u[at : at + size].tolist(), codec.share(0))
        wanted += [at + i for i in chosen]
        at += size
    assert encoded.coords is not None
    assert encoded.coords.tolist() == wanted
    assert encoded.coords.dtype == np.uint32
    assert encoded.values.dtype == after.local.dtype == np.float32
    assert encoded.values.tobytes() == u[wanted].tobytes()
    assert encoded.extras is EXTRAS
    rest = u.copy()
    rest[wanted] = 0
    assert np.array_equal(after.local, rest)
    assert np.array_equal(merged(encoded.values, encoded.coords, after.local), u)
    assert after.shared == state.shared
    if old is not None:
        assert np.array_equal(old, before), "the committed residual must not change"
    return encoded


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_chooses_what_sorting_chooses(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    ratio = data.draw(st.sampled_from([0.001, 0.01, 0.1, 0.3, 0.5, 0.99, 1.0]))
    some = st.lists(floats, min_size=sum(sizes), max_size=sum(sizes)).map(vector)
    check(TopK(ratio, 0), sizes, data.draw(some), data.draw(st.none() | some))


SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n),
    "zeros": lambda _, n: np.zeros(n),
    "mostly zeros": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.02),
    "one value": lambda _, n: np.full(n, -0.25),
    "three values": lambda rng, n: rng.integers(-1, 2, n) * 0.5,
    "ascending": lambda _, n: np.arange(n) * 2.0**-20,
    "large at the end": lambda _, n: np.where(np.arange(n) >= n - n // 50, 1.0, 1e-3),
    "large where nothing is sampled": lambda _, n: (np.arange(n) % 7 == 3) * 2.0 + 1,
    "tiny": lambda rng, n: rng.standard_normal(n) * 1e-42,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [8191, 8193, 20_000, 65_537])
@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
def test_chooses_what_sorting_chooses_in_large_layers(shape: str, size: int, ratio: float) -> None:
    rng = np.random.default_rng(size)
    x = SHAPES[shape](rng, size + 5).astype(np.float32)
    sizes = [5, size]
    check(TopK(ratio, 0), sizes, x)
    check(TopK(ratio, 0), sizes, x, (rng.standard_normal(size + 5) * 0.1).astype(np.float32))


@pytest.mark.parametrize("stride", [3, 16, 17])
def test_a_layer_that_fools_the_sample_is_chosen_from_all_the_same(stride: int) -> None:
    """Large values at the very places that the guess looks at, and then everywhere but there."""
    size = 4096 * stride
    x = np.full(size, 1.0, np.float32)
    x[::stride] = 1000 + np.arange(4096)
    check(TopK(0.2, 0), [size], x)
    check(TopK(0.2, 0), [size], 1 / x)


def test_of_equal_magnitudes_the_first_are_taken() -> None:
    x = vector([1, -2, 2, -2, 2, 0])
    encoded = check(TopK(0.5, 0), [6], x)
    assert encoded.values.tolist() == [-2, 2, -2]
    many = np.where(np.arange(30_000) % 2, 1, -1).astype(np.float32)
    encoded = check(TopK(0.1, 0), [30_000], many)
    assert encoded.coords is not None
    assert encoded.coords.tolist() == list(range(3000))


def test_the_count_says_nothing_of_the_values() -> None:
    codec = TopK(0.1, 0)
    for x in (np.zeros(1000), np.arange(1000), np.arange(1000) == 7):
        assert check(codec, [900, 100], x.astype(np.float32)).values.size == 100


@pytest.mark.parametrize(
    ("ratio", "size", "kept"),
    [(0.1, 30, 3), (0.1, 31, 4), (0.7, 10, 7), (0.01, 5, 1), (0.001, 1, 1), (1, 9, 9), (0.3, 0, 0)],
)
def test_shares_are_the_decimal_numbers_they_are_written_as(
    ratio: float, size: int, kept: int
) -> None:
    codec = TopK(ratio, 0)
    assert codec.keep(Progress((0, size), 5)).tolist() == [kept]
    assert check(codec, [size], np.ones(size, np.float32)).values.size == kept


def test_sparsity_grows_as_in_the_paper() -> None:
    def shares(codec: TopK, rounds: int) -> list[float]:
        return [float(codec.share(r)) for r in range(rounds)]

    assert shares(TopK(0.1), 45) == [0.8] * 10 + [0.4] * 10 + [0.2] * 10 + [0.1] * 15
    assert shares(TopK(0.2, 2), 6) == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    assert shares(TopK(0.5, 1), 3) == [0.8, 0.5, 0.5]
    assert shares(TopK(0.9, 3), 2) == shares(TopK(0.9, 0), 2) == [0.9, 0.9]
    assert shares(TopK(0.01, 0), 2) == [0.01, 0.01]
    assert TopK(0.1).share(10**15) == Fraction(1, 10)


def test_what_is_not_sent_is_sent_later() -> None:
    """Over rounds, what was sent and what is left add up to what was trained; integers are exact."""
    rng = np.random.default_rng(3)
    codec = TopK(0.1, 1)
    state = codec.init(layout(50, 10_000, 3))
    trained, sent = np.zeros(10_053), np.zeros(10_053)
    nothing = Plain(np.empty(0), NONE, np.empty(0, np.uint32))
    for _ in range(12):
        x = rng.integers(-1000, 1000, 10_053).astype(np.float32)
        encoded, state = codec.encode(Plain(x, NONE), state)
        trained += x
        sent[encoded.coords] += encoded.values
        assert np.array_equal(sent + state.local, trained)
        residual = state.local
        _, state = codec.decode(nothing, (0,), state)
        assert state.local is residual
    assert state.shared.rounds == 12


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
@settings(deadline=None)
def test_decoded_sum_is_the_sum_of_what_was_chosen(count: int, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    codec = TopK(0.3, 0)
    state = codec.init(layout(40, 7))
    total, counts = np.zeros(47, dtype), np.zeros(47, np.uint16)
    for _ in range(count):
        x = rng.integers(-100, 100, 47).astype(np.float32)
        encoded, _ = codec.encode(Plain(x, NONE), state)
        total[encoded.coords] += encoded.values
        counts[encoded.coords] += 1
    union = np.flatnonzero(counts).astype(np.uint32)
    plain = Plain(total[union], EXTRAS, union)
    opened, after = codec.decode(plain, range(count), state)
    assert opened.values.dtype == np.float32
    assert np.array_equal(opened.values, total)
    assert opened.coords is None
    assert opened.extras is EXTRAS
    assert after.shared.rounds == 1


def test_a_dense_sum_passes() -> None:
    codec = TopK(0.1)
    total = Plain(np.ones(4, np.float32), EXTRAS)
    opened, after = codec.decode(total, range(2), codec.init(layout(4)))
    assert opened is total
    assert after.shared.rounds == 1


@pytest.mark.parametrize("coords", [[0, 5], [2, 2], [3, 1], [0, 2**32 - 1], [0, 1, 2]])
def test_sums_that_senders_cannot_have_made_are_refused(coords: list[int]) -> None:
    codec = TopK(0.1, 0)
    total = Plain(np.ones(2, np.float32), NONE, np.array(coords, np.uint32))
    with pytest.raises(errors.ProtocolError):
        codec.decode(total, range(2), codec.init(layout(5)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [7, 30_000])
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_nan_and_infinity_are_refused(bad: float, size: int, share: float) -> None:
    codec = TopK(share, 0)
    for at in (0, size // 2, size - 1):
        x = np.ones(size, np.float32)
        x[at] = bad
        with pytest.raises(errors.RangeError, match="NaN or infinity"):
            codec.encode(Plain(x, NONE), codec.init(layout(size)))
    most = np.full(size, np.finfo(np.float32).max)
    shared = codec.init(layout(size)).shared
    with pytest.raises(errors.RangeError, match="NaN or infinity"):
        codec.encode(Plain(most, NONE), State(shared, most))


def test_misfits_are_refused() -> None:
    codec = TopK(0.1)
    state = codec.init(layout(5))
    sparse = Plain(np.ones(2, np.float32), NONE, np.array([0, 1], np.uint32))
    with pytest.raises(errors.MisfitError, match="sparsify only once"):
        codec.encode(sparse, state)
    with pytest.raises(errors.MisfitError, match="5 values"):
        codec.encode(Plain(np.ones(6, np.float32), NONE), state)
    with pytest.raises(errors.MisfitError, match="5 values"):
        codec.encode(Plain(np.ones(5, np.float32), NONE), State(state.shared, np.zeros(4)))
    with pytest.raises(errors.ConfigError, match="2147483647"):
        codec.init(layout(2**30, 2**30))
    with pytest.raises(errors.MisfitError, match="before Quantize"):
        codec.out(Integers(3))
    assert codec.out(Reals(1.0)) == Reals(math.inf)
    assert codec.lanes(7, layout(5)) == 7


@pytest.mark.parametrize("ratio", [0, -0.1, 1.1, math.nan, math.inf])
def test_impossible_ratios_are_refused(ratio: float) -> None:
    with pytest.raises(errors.ConfigError, match="ratio"):
        TopK(ratio)


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="warmup"):
        TopK(0.1, -1)
    wanted = {"name": "topk", "ratio": "1.0", "warmup": 10}
    assert TopK(1).parameters() == wanted


def test_memory_is_recalled() -> None:
    codec, where = TopK(0.1), layout(5, 3)
    shared = Progress((0, 5, 8), 12)
    kept = codec.memory(shared)
    assert kept[ROUNDS].tolist() == [12]
    assert codec.recall(where, kept) == State(shared)
    assert codec.recall(where, {}) == codec.init(where)
    assert codec.recall(where, {"other": np.zeros(3)}) == codec.init(where)


@pytest.mark.parametrize(
    "kept",
    [
        np.array([-1.0]),
        np.array([0.5]),
        np.array([math.nan]),
        np.array([math.inf]),
        np.array([1e300]),
        np.array([1.0, 2.0]),
        np.array(3.0),
        np.empty(0),
        np.array([3], np.int64),
    ],
)
def test_malformed_memory_is_refused(kept: NDArray[Any]) -> None:
    with pytest.raises(errors.ProtocolError, match="TopK's rounds"):
        TopK(0.1).recall(layout(5), {ROUNDS: kept})


@pytest.mark.parametrize("count", [1, 3])
def test_a_sum_without_one_value_a_coordinate_is_refused(count: int) -> None:
    total = Plain(np.ones(count, np.float32), NONE, np.array([0, 3], np.uint32))
    with pytest.raises(errors.ProtocolError, match="one value a coordinate"):
        TopK(0.1).decode(total, range(2), TopK(0.1).init(layout(5)))

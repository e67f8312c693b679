"""TopK: its choice against a sorting reference, its residuals, its schedule, its refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Integers, Plain, Reals, State
from flhe.coding.flatten import Entry, Layout
from flhe.coding.sparsify import ROUNDS, TopK, merged

NONE = np.empty(0, np.int64)
EXTRAS = np.array([1, 17], np.int64)
floats = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5])


def layout(*sizes: int, names: Sequence[str] = ()) -> Layout:
    called = names or [f"layer{i}" for i in range(len(sizes))]
    return Layout(
        tuple(Entry(*of, "float32") for of in zip(called, [(n,) for n in sizes], strict=True))
    )


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
    check(TopK(ratio, 0, small=0), sizes, data.draw(some), data.draw(st.none() | some))


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
@pytest.mark.parametrize("size", [8193, 20_000])
@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5])
def test_chooses_what_sorting_chooses_in_large_layers(shape: str, size: int, ratio: float) -> None:
    rng = np.random.default_rng(size)
    x = SHAPES[shape](rng, size + 5).astype(np.float32)
    sizes = [5, size]
    check(TopK(ratio, 0, small=0), sizes, x)
    check(
        TopK(ratio, 0, small=0), sizes, x, (rng.standard_normal(size + 5) * 0.1).astype(np.float32)
    )


@pytest.mark.parametrize("stride", [3, 16, 17])
def test_a_layer_that_fools_the_sample_is_chosen_from_all_the_same(stride: int) -> None:
    """Large values at the very places that the guess looks at, and then everywhere but there."""
    x = np.full(4096 * stride, 1.0, np.float32)
    x[::stride] = 1000 + np.arange(4096)
    for values in (x, 1 / x):
        check(TopK(0.2, 0, small=0), [x.size], values)


@pytest.mark.parametrize(
    ("how", "shares"),
    [
        ((0.1,), [0.8] * 10 + [0.4] * 10 + [0.2] * 10 + [0.1] * 15),
        ((0.2, 2), [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
        ((0.5, 1), [0.8, 0.5, 0.5]),
        ((0.9, 3), [0.9, 0.9]),
        ((0.01, 0), [0.01, 0.01]),
    ],
)
def test_sparsity_grows_as_in_the_paper(how: tuple[Any, ...], shares: list[float]) -> None:
    assert [float(TopK(*how).share(r)) for r in range(len(shares))] == shares
    assert TopK(0.1, small=0).share(10**15) == Fraction(1, 10)


def test_what_is_not_sent_is_sent_later() -> None:
    """Over rounds, what was sent and what is left add up to what was trained; integers are exact."""
    rng = np.random.default_rng(3)
    codec = TopK(0.1, 1, small=0)
    state = codec.init(layout(50, 10_000, 3))
    trained, sent = np.zeros(10_053), np.zeros(10_053)
    for _ in range(12):
        x = rng.integers(-1000, 1000, 10_053).astype(np.float32)
        encoded, state = codec.encode(Plain(x, NONE), state)
        trained += x
        residual = state.local
        opened, state = codec.decode(encoded, (0,), state)
        assert (opened.values.dtype, opened.coords) == (np.float32, None)
        assert opened.extras is NONE
        sent += opened.values
        assert np.array_equal(sent + residual, trained)
        assert state.local is residual
    dense = Plain(x, EXTRAS)
    opened, state = codec.decode(dense, (0,), state)
    assert opened is dense
    assert state.shared.rounds == 13


NAMED = ("conv.weight", "bn.running_mean", "bn.running_var", "bn.bias", "head.mine")


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, [100, 1000, 1000, 16, 100]),
        ({"small": 0}, [100, 1000, 1000, 2, 100]),
        ({"whole": ()}, [100, 100, 100, 16, 100]),
        ({"whole": ("head.*",), "small": 16}, [100, 100, 100, 16, 1000]),
        ({"whole": ("*",)}, [1000, 1000, 1000, 16, 1000]),
    ],
)
def test_some_arrays_travel_whole(how: dict[str, Any], kept: list[int]) -> None:
    where = layout(1000, 1000, 1000, 16, 1000, names=NAMED)
    codec = TopK(0.1, 0, **how)
    state = codec.init(where)
    x = np.random.default_rng(5).standard_normal(where.floats).astype(np.float32)
    for _ in range(3):  # in every round
        sent, after = codec.encode(Plain(x, NONE), state)
        assert sent.coords is not None
        edges = np.searchsorted(sent.coords, state.shared.bounds)
        assert np.diff(edges).tolist() == kept == codec.keep(state.shared).tolist()
        for (_, a, b), whole in zip(
            where.segments(), np.equal(kept, [1000] * 3 + [16, 1000]), strict=True
        ):
            assert not whole or not after.local[a:b].any()
        _, state = codec.decode(sent, (0,), after)
    assert codec.recall(where, codec.memory(state.shared)) == State(state.shared)
    assert codec.recall(where, {"other": np.zeros(3)}) == codec.init(where)


@pytest.mark.parametrize(
    ("coords", "says"),
    [
        *((bad, "do not ascend or lie beyond") for bad in ([0, 5], [2, 2], [3, 1], [0, 2**32 - 1])),
        *((bad, "one value a coordinate") for bad in ([0, 1, 2], [3])),
    ],
)
def test_sums_that_senders_cannot_have_made_are_refused(coords: list[int], says: str) -> None:
    codec = TopK(0.1, 0, small=0)
    total = Plain(np.ones(2, np.float32), NONE, np.array(coords, np.uint32))
    with pytest.raises(errors.ProtocolError, match=says):
        codec.decode(total, range(2), codec.init(layout(5)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [7, 30_000])
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_nan_and_infinity_are_refused(bad: float, size: int, share: float) -> None:
    codec = TopK(share, 0, small=0)
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
    codec = TopK(0.1, small=0)
    state = codec.init(layout(5))
    right, long = Plain(np.ones(5, np.float32), NONE), Plain(np.ones(6, np.float32), NONE)
    sparse = Plain(np.ones(2, np.float32), NONE, np.array([0, 1], np.uint32))
    other = State(state.shared, np.zeros(4))
    for plain, start, says in (
        (sparse, state, "only once"),
        (long, state, "5 values"),
        (right, other, "5 values"),
    ):
        with pytest.raises(errors.MisfitError, match=says):
            codec.encode(plain, start)
    with pytest.raises(errors.ConfigError, match="2147483647"):
        codec.init(layout(2**30, 2**30))
    with pytest.raises(errors.MisfitError, match="before Quantize"):
        codec.out(Integers(3))
    assert codec.out(Reals(1.0)) == Reals(math.inf)


@pytest.mark.parametrize(
    "kept",
    [
        *(np.array([bad]) for bad in (-1.0, 0.5, math.nan, math.inf, 1e300)),
        *(np.array([1.0, 2.0]), np.array(3.0), np.empty(0), np.array([3], np.int64)),
    ],
    ids=str,
)
def test_malformed_memory_is_refused(kept: NDArray[Any]) -> None:
    with pytest.raises(errors.ProtocolError, match="TopK's rounds"):
        TopK(0.1, small=0).recall(layout(5), {ROUNDS: kept})

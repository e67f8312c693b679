"""Selection: the same for everybody, as large as was said, and by nothing but its rule."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.errors import ConfigError, RangeError

LAYOUT = Layout(
    (
        Entry("conv.weight", (6, 5), "float32"),
        Entry("conv.bias", (6,), "float16"),
        Entry("bn.steps", (), "int64"),
        Entry("fc.weight", (10, 6), "float32"),
        Entry("fc.bias", (10,), "float64"),
    )
)


def flat(floats: int, name: str = "w") -> Layout:
    return Layout((Entry(name, (floats,), "float32"),))


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(1, 2000))
@example(100, 30)
def test_counts_are_the_share_rounded_up(per_mille: int, floats: int) -> None:
    count = Select(per_mille / 1000).count(flat(floats))
    assert count == max(1, math.ceil(Fraction(per_mille, 1000) * floats))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=40), min_size=1, max_size=4),
    st.floats(0.01, 1.0),
)
def test_half_of_each_arrays_share_is_its_own(arrays: list[list[int]], ratio: float) -> None:
    """The rest is the largest of all, and of equals the first."""
    layout = Layout(tuple(Entry(f"w{i}", (len(a),), "float32") for i, a in enumerate(arrays)))
    sums, select = [value for array in arrays for value in array], Select(ratio)
    count = select.count(layout)
    expected: set[int] = set()
    for _, start, stop in layout.segments():
        order = sorted(range(start, stop), key=lambda i: (-sums[i], i))
        expected |= set(order[: count * (stop - start) // (2 * len(sums))])
    rest = sorted(set(range(len(sums))) - expected, key=lambda i: (-sums[i], i))
    expected |= set(rest[: count - len(expected)])
    found = select.of_map(np.array(sums, np.int32), layout)
    assert (found.coords.tolist(), found.length) == (sorted(expected), len(sums))


def test_a_random_selection_is_the_same_for_all_and_spread_evenly() -> None:
    layout = flat(100_000)
    found = Select(0.1, "random").fixed(layout)
    assert found == Select(0.1, "random").fixed(layout)
    assert found.count == 10_000
    tenths = np.bincount(found.coords // 10_000, minlength=10)
    assert ((tenths - 1000) ** 2 / 900).sum() < 40  # 9 degrees of freedom: p = 1e-5
    other = Select(0.1, "random").fixed(flat(100_000, "v"))
    assert np.intersect1d(found.coords, other.coords).size < 1300
    more = Select(0.2, "random").fixed(layout)
    assert set(found.coords.tolist()) < set(more.coords.tolist())


@pytest.mark.parametrize(
    ("pattern", "runs"),
    [
        ("conv", [(0, 36)]),
        ("bias$", [(30, 36), (96, 106)]),
        ("^fc", [(36, 106)]),
        (r"^conv\.weight$|^fc\.weight$", [(0, 30), (36, 96)]),
        (r"[(]|\(|fc\.w", [(36, 96)]),
        ("[cf].*eight", [(0, 30), (36, 96)]),
        ("eigh?t", [(0, 30), (36, 96)]),
        (".", [(0, 106)]),
    ],
)
def test_layers_by_name(pattern: str, runs: list[tuple[int, int]]) -> None:
    select = Select(rule=f"layers:{pattern}")
    expected = [d for start, stop in runs for d in range(start, stop)]
    assert select.fixed(LAYOUT).coords.tolist() == expected
    assert select.count(LAYOUT) == len(expected)


LONG = Layout(tuple(Entry("a" * 197 + str(i), (1,), "float32") for i in range(100)))
MANY = Layout(tuple(Entry(f"{i:0200}", (1,), "float32") for i in range(1400)))


@pytest.mark.parametrize(
    ("pattern", "layout", "says"),
    [
        *(
            (missing, LAYOUT, r"'conv\.weight', 'conv\.bias'")
            for missing in ("nothing", "steps", "Conv")
        ),
        (".*b", flat(1, "a" * 201), "201 characters"),
        ("0", MANY, "280000"),
        # In half a second; without a bound on repeats it is hours, and no test would wait for it.
        (".*" + r"\w" * 120 + "x", LONG, "no array"),
    ],
    ids=lambda value: value[:9] if isinstance(value, str) else "",
)
def test_layers_that_are_not_there_are_named(pattern: str, layout: Layout, says: str) -> None:
    with pytest.raises(ConfigError, match="map"):
        Select(0.5).fixed(layout)
    for ask in (Select.count, Select.fixed):
        with pytest.raises(ConfigError, match=says):
            ask(Select(rule=f"layers:{pattern}"), layout)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=80).filter(any),
    st.floats(0.01, 0.99),
    st.integers(-20, 20),
)
def test_a_map_is_scaled_and_its_order_kept(values: list[float], ratio: float, power: int) -> None:
    own = np.array(values, np.float32)
    scaled = Select(ratio).normalized(own)
    assert scaled.dtype == np.float32
    assert scaled.min() >= -1
    assert scaled.max() == 1
    assert np.all(scaled[own == 0] == -1)
    order = np.argsort(own, kind="stable")
    assert np.all(np.diff(scaled[order]) >= 0)
    normal = own[(own > 1e-20) | (own == 0)]
    if normal.size == own.size:  # whoever's losses are larger by a factor says the same
        assert np.array_equal(Select(ratio).normalized(own * np.float32(2.0**power)), scaled)
    assert np.array_equal(Select(ratio).normalized(-own), scaled)


def test_values_at_the_border_of_the_selection_are_told_apart() -> None:
    """A few huge values do not push all others into one step of the quantizer."""
    own = np.linspace(0, 1, 1000, dtype=np.float32)
    own[-3:] = 1e9
    border = Select(0.1).normalized(own)[880:920]
    assert np.unique(np.rint(border * 32767)).size == 40
    for bad, says in ((np.nan, "NaN or inf"), (np.inf, "NaN or inf"), (0, "zero everywhere")):
        with pytest.raises(RangeError, match=says):
            Select(0.5).normalized(np.array([bad, bad], np.float32))

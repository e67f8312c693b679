"""Weigh: the weighted mean, and an example count that nobody is told."""

from __future__ import annotations

import re

import numpy as np
import pytest

from flhe.coding.base import Plain, State
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.extras import MAX_PRODUCT
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.spaces import Integers, Reals
from flhe.coding.weigh import Weigh, most_examples
from flhe.errors import (
    ClippedError,
    ConfigError,
    ExamplesError,
    MisfitError,
    ProtocolError,
    RangeError,
)

LAYOUT = Layout((Entry("w", (4,), "float32"),))
LIMIT = 5000
WAYS = {
    "alone": Weigh(LIMIT),
    "apart": Chain((Clip(1.0), Weigh(LIMIT), Quantize(16)), fuse=False),
    "fused": Chain((Clip(1.0), Weigh(LIMIT), Quantize(16))),
}


def plain(n: int) -> Plain:
    return Plain(np.array([0.5, -0.5, 0.0, 1.0], np.float32), np.array([1, n], np.int64))


@pytest.mark.parametrize(
    ("way", "n"),
    [
        *((way, n) for way in WAYS for n in (0, -1)),
        # Nothing before it scales the values up: what it cannot weigh, it refuses.
        *(("alone", n) for n in (LIMIT + 1, 123456789, 2**40)),
    ],
)
def test_a_count_out_of_range_is_refused_and_not_told(way: str, n: int) -> None:
    codec = WAYS[way]
    with pytest.raises(ExamplesError) as caught:
        codec.encode(plain(n), codec.init(LAYOUT))
    told = set(re.findall(r"\d+", str(caught.value)))
    assert told <= {str(LIMIT)}, "only the public bound may be named"
    assert caught.value.__cause__ is None


def mean_of(codec: Chain, parts: dict[int, list[float]]) -> tuple[list[float], list[Plain]]:
    """The decoded mean of values by example count, and what was encoded of them."""
    state = codec.init(LAYOUT)
    encoded = [
        codec.encode(Plain(np.array(x, np.float32), np.array([1, n], np.int64)), state)[0]
        for n, x in parts.items()
    ]
    total = Plain(
        np.sum([e.values for e in encoded], axis=0), np.sum([e.extras for e in encoded], axis=0)
    )
    opened, _ = codec.decode(total, range(len(parts)), state)
    return opened.values.tolist(), encoded


@pytest.mark.parametrize("way", ["apart", "fused"])
def test_a_client_with_more_examples_weighs_what_it_should(way: str) -> None:
    """CIFAR-10 on three nodes: 13,333 examples each, where max_examples is less."""
    small = [0.1, -0.2, 0.0, 0.05]
    parts = {13_333: [0.3, -0.3, 0.0, 0.1], 13_334: [0.2, 0.1, 0.0, -0.3], 500: small}
    mean, _ = mean_of(WAYS[way], parts)
    weighted = sum(n * np.array(x) for n, x in parts.items()) / sum(parts)
    assert mean == pytest.approx(weighted.tolist(), abs=3 * LIMIT / sum(parts) * 2**-14)


@pytest.mark.parametrize("way", ["apart", "fused"])
def test_its_threshold_is_as_much_lower(way: str, caplog: pytest.LogCaptureFixture) -> None:
    mean, encoded = mean_of(WAYS[way], {4 * LIMIT: [0.1, 0.25, -0.2, 0.5]})
    assert encoded[0].values.max() == Quantize(16).levels  # 0.5 is cut at 1.0 / 4
    assert mean == pytest.approx([0.1, 0.25, -0.2, 0.25], abs=2**-15)
    with pytest.raises(ClippedError, match=r"more than half .* or max_examples"):
        mean_of(WAYS[way], {40 * LIMIT: [0.1, 0.25, -0.2, 0.5]})
    assert "or max_examples, since this node has more examples" in caplog.text


@pytest.mark.parametrize("rule", ["history", "exchange"])
def test_fitted_thresholds_make_room_for_it(rule: str) -> None:
    """What is fitted are the values as they are weighed: nothing is cut that is not otherwise."""
    codec = Chain((Clip(rule=rule), Weigh(LIMIT), Quantize(16)))  # type: ignore[arg-type]
    rng = np.random.default_rng(5)
    layout = Layout((Entry("w", (4096,), "float32"),))
    x = rng.normal(0, 0.01, 4096).astype(np.float32)
    many = Plain(x, np.array([1, 8 * LIMIT], np.int64))
    state = codec.init(layout)
    state = codec.fitted(codec.statistics(many, state), 1, state)
    encoded, _ = codec.encode(many, state)
    opened, _ = codec.decode(encoded, (0,), state)
    usual = Plain(x, np.array([1, LIMIT], np.int64))
    start = codec.init(layout)
    start = codec.fitted(codec.statistics(usual, start), 1, start)
    again, _ = codec.decode(codec.encode(usual, start)[0], (0,), start)
    assert state.shared[0].alphas == pytest.approx([8 * start.shared[0].alphas[0]])
    assert np.abs(opened.values - again.values).max() < 1e-5
    assert np.corrcoef(opened.values, x)[0, 1] > 0.999


@pytest.mark.parametrize("way", ["apart", "fused"])
def test_a_history_of_thresholds_keeps_that_room(way: str) -> None:
    """From the second round on, mean squares come with the update: they are of scaled values, too."""
    codec = Chain((Clip.history(), Weigh(LIMIT), Quantize(16)), fuse=way == "fused")
    layout = Layout((Entry("w", (4096,), "float32"),))
    x = np.random.default_rng(5).normal(0, 0.01, 4096).astype(np.float32)
    many = Plain(x, np.array([1, 8 * LIMIT], np.int64))
    state = codec.init(layout)
    state = codec.fitted(codec.statistics(many, state), 1, state)
    first = state.shared[0].alphas
    for _ in range(3):
        encoded, _ = codec.encode(many, state)
        _, state = codec.decode(encoded, (0,), state)
    assert state.shared[0].alphas == pytest.approx(first)


def test_where_all_weigh_the_same_nobody_weighs_more() -> None:
    codec = Chain((Clip(1.0), Weigh(1), Quantize(16)))
    with pytest.raises(ExamplesError):
        codec.encode(plain(2), codec.init(LAYOUT))


@pytest.mark.parametrize(
    ("count", "weight", "message"),
    [
        (1, 100, "one update from each of its 2 senders"),
        (3, 100, "one update from each of its 2 senders"),
        (0, 0, "one update from each of its 2 senders"),
        (-2, 100, "one update from each of its 2 senders"),
        (2, 1, "impossible weight"),
        (2, 0, "impossible weight"),
        (2, -5, "impossible weight"),
        (2, 2 * most_examples(2) + 1, "impossible weight"),
    ],
)
def test_a_sum_that_its_senders_did_not_make(count: int, weight: int, message: str) -> None:
    extras = np.array([count, weight], np.int64)
    with pytest.raises(ProtocolError, match=message):
        Weigh(LIMIT).decode(Plain(np.zeros(4), extras), (0, 1), State())
    quantize = Quantize(16)
    lanes = Plain(np.zeros(4, np.int32), quantize.split(extras))
    for codec in (WAYS["apart"], WAYS["fused"]):
        with pytest.raises(ProtocolError, match=message):
            codec.decode(lanes, (0, 1), codec.init(LAYOUT))


@pytest.mark.parametrize("weight", [2, 2 * LIMIT])
def test_both_ends_of_a_possible_weight(weight: int) -> None:
    extras = np.array([2, weight], np.int64)
    opened, _ = Weigh(LIMIT).decode(Plain(np.zeros(4), extras), (0, 1), State())
    assert not opened.values.any()


def test_the_cohort_must_leave_room_in_63_bits() -> None:
    Weigh(1 << 28).check_cohort(15)
    with pytest.raises(
        MisfitError, match=r"with 16 clients overflows 63 bits; at most 268435455 fit"
    ):
        Weigh(1 << 28).check_cohort(16)
    assert (1 << 28) * MAX_PRODUCT * 15 < 1 << 63
    Weigh(268435455).check_cohort(16)


@pytest.mark.parametrize("limit", [0, -1, (1 << 28) + 1])
def test_bounds_that_cannot_be(limit: int) -> None:
    with pytest.raises(ConfigError, match="must be 1 to"):
        Weigh(limit)


def test_what_goes_before_it() -> None:
    assert Weigh(5).out(Reals(0.5)) == Reals(0.5)
    with pytest.raises(MisfitError, match="put it before Quantize"):
        Weigh(5).out(Integers(7))


def test_extras_without_a_weight() -> None:
    with pytest.raises(RangeError, match="the count and the weight"):
        Weigh(5).encode(Plain(np.zeros(4, np.float32), np.array([1], np.int64)), State())

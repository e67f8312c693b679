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
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, ProtocolError, RangeError
from flhe.spaces import Integers, Reals

LAYOUT = Layout((Entry("w", (4,), "float32"),))
LIMIT = 5000
WAYS = {
    "alone": Weigh(LIMIT),
    "apart": Chain((Clip(1.0), Weigh(LIMIT), Quantize(16)), fuse=False),
    "fused": Chain((Clip(1.0), Weigh(LIMIT), Quantize(16))),
}


def plain(n: int) -> Plain:
    return Plain(np.array([0.5, -0.5, 0.0, 1.0], np.float32), np.array([1, n], np.int64))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [0, -1, LIMIT + 1, 123456789, 2**40])
def test_a_count_out_of_range_is_refused_and_not_told(way: str, n: int) -> None:
    codec = WAYS[way]
    with pytest.raises(RangeError) as caught:
        codec.encode(plain(n), codec.init(LAYOUT))
    told = set(re.findall(r"\d+", str(caught.value)))
    assert told <= {str(LIMIT)}, "only the public bound may be named"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("n", [1, 2, 4999, LIMIT])
def test_scales_by_its_share_of_the_bound(n: int) -> None:
    encoded, _ = Weigh(LIMIT).encode(plain(n), State())
    assert encoded.values == pytest.approx(plain(n).values * n / LIMIT, rel=1e-6)
    assert encoded.extras.tolist() == [1, n]
    opened, _ = Weigh(LIMIT).decode(encoded, (4,), State())
    assert opened.values == pytest.approx(plain(n).values, rel=1e-6)


def test_the_mean_is_divided_by_what_the_sum_says() -> None:
    """Two of a larger cohort answered, with 1 and 3 examples: the configured N appears nowhere."""
    parts = [Weigh(LIMIT).encode(plain(n), State())[0] for n in (1, 3)]
    parts[1] = parts[1]._replace(values=-parts[1].values)
    total = Plain(parts[0].values + parts[1].values, parts[0].extras + parts[1].extras)
    opened, _ = Weigh(LIMIT).decode(total, (2, 7), State())
    assert opened.values == pytest.approx([-0.25, 0.25, 0.0, -0.5], rel=1e-6)


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
        (2, 2 * LIMIT + 1, "impossible weight"),
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

"""Weigh: the weighted mean, and an example count that nobody is told."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh, most_examples
from flhe.errors import ExamplesError, ProtocolError, RangeError
from tests.laws import summed

LAYOUT = Layout((Entry("w", (4,), "float32"),))
LIMIT = 5000
X = np.array([0.5, -0.5, 0.0, 1.0], np.float32)


def three(limit: int = LIMIT, clip: Clip | None = None, fuse: bool = True) -> Chain:
    return Chain((clip or Clip(1.0), Weigh(limit), Quantize(16)), fuse=fuse)


WAYS = {"alone": Weigh(LIMIT), "apart": three(fuse=False), "fused": three()}


def extras(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("codec", "n"),
    [
        *((codec, n) for codec in WAYS.values() for n in (0, -1)),
        # Nothing before it scales the values up: what it cannot weigh, it refuses.
        *((WAYS["alone"], n) for n in (LIMIT + 1, 123456789, 2**40)),
        (three(1), 2),  # where all weigh the same nobody weighs more
    ],
)
def test_a_count_out_of_range_is_refused_and_not_told(codec: Chain | Weigh, n: int) -> None:
    with pytest.raises(ExamplesError) as caught:
        codec.encode(Plain(X, extras(1, n)), codec.init(LAYOUT))
    told = set(re.findall(r"\d+", str(caught.value)))
    assert told <= {str(LIMIT), "1"}, "only the public bound may be named"
    assert caught.value.__cause__ is None


def test_extras_without_a_weight() -> None:
    with pytest.raises(RangeError, match="the count and the weight"):
        Weigh(5).encode(Plain(X, extras(1)), State())


def mean_of(codec: Chain, parts: dict[int, list[float]]) -> tuple[list[float], list[Plain]]:
    """The decoded mean of values by example count, and what was encoded of them."""
    state = codec.init(LAYOUT)
    encoded = [
        codec.encode(Plain(np.array(x, np.float32), extras(1, n)), state)[0]
        for n, x in parts.items()
    ]
    opened, _ = codec.decode(summed(encoded), range(len(parts)), state)
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
    mean_of(WAYS[way], {40 * LIMIT: [0.1, 0.25, -0.2, 0.5]})
    assert "more than half" in caplog.text
    assert "this node has more than max_examples" in caplog.text


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("rule", ["history", "exchange"])
def test_fitted_thresholds_make_room_for_it(rule: str, fuse: bool) -> None:
    """What is fitted are the values as they are weighed; a history goes on with scaled values, too."""
    codec = three(clip=Clip(rule=rule), fuse=fuse)  # type: ignore[arg-type]
    layout = Layout((Entry("w", (4096,), "float32"),))
    x = np.random.default_rng(5).normal(0, 0.01, 4096).astype(np.float32)
    alphas, opened = [], []
    for n in (LIMIT, 8 * LIMIT):
        plain, start = Plain(x, extras(1, n)), codec.init(layout)
        state = codec.fitted(codec.statistics(plain, start), 1, start)
        alphas.append(state.shared[0].alphas)
        total, after = codec.decode(codec.encode(plain, state)[0], (0,), state)
        opened.append(total.values)
        for _ in range(2 if rule == "history" else 0):
            _, after = codec.decode(codec.encode(plain, after)[0], (0,), after)
            assert after.shared[0].alphas == pytest.approx(alphas[-1])
    assert alphas[1] == pytest.approx([8 * alphas[0][0]])
    assert np.abs(opened[0] - opened[1]).max() < 1e-5
    assert np.corrcoef(opened[1], x)[0, 1] > 0.999


@pytest.mark.parametrize(
    ("count", "weight", "message"),
    [
        *((count, 100, "one update from each of its 2 senders") for count in (1, 3, 0, -2)),
        *((2, weight, "impossible weight") for weight in (1, 0, -5, 2 * most_examples(2) + 1)),
        *((2, weight, "") for weight in (2, 2 * LIMIT)),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_its_senders_did_not_make(
    way: str, count: int, weight: int, message: str
) -> None:
    said, codec = extras(count, weight), WAYS[way]
    total = Plain(np.zeros(4, np.int32), said if way == "alone" else Quantize(16).split(said))
    expected = pytest.raises(ProtocolError, match=message) if message else nullcontext()
    with expected:
        assert not codec.decode(total, (0, 1), codec.init(LAYOUT))[0].values.any()

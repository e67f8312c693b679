"""Clip: one threshold, one a layer, what is too much; and thresholds that follow the updates."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding import aciq, squares
from flhe.coding.base import Plain, Reals, State
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout, layout_of
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, NotFiniteError, ProtocolError
from tests.laws import largest_error, summed

EXTRAS = np.array([1, 3], np.int64)
ONE_LAYER = Layout((Entry("w", (200,), "float32"),))
LAYERS = Layout(
    (
        Entry("conv1.weight", (2,), "float32"),
        Entry("conv2.weight", (2,), "float32"),
        Entry("steps", (), "int64"),
        Entry("head", (2,), "float32"),
    )
)

WAYS = {
    "alone": lambda clip: clip,
    "apart": lambda clip: Chain((clip, Weigh(5), Quantize(16)), fuse=False),
    "fused": lambda clip: Chain((clip, Weigh(5), Quantize(16))),
}


def clipped(clip: Clip, x: list[float], layout: Layout) -> list[float]:
    return clip.encode(Plain(np.array(x, np.float32), EXTRAS), clip.init(layout))[0].values.tolist()


def test_one_threshold_a_layer_and_the_first_match_counts() -> None:
    clip = Clip({"conv1.*": 2.0, "conv?.weight": 4.0, "*": 8.0})
    assert clip.segments(clip.init(LAYERS).shared) == ((0, 2, 2.0), (2, 4, 4.0), (4, 6, 8.0))
    assert clipped(clip, [1, -3, 100, -1, 1, 0], LAYERS) == [0.5, -1, 1, -0.25, 0.125, 0]
    opened, _ = clip.decode(Plain(np.ones(6), EXTRAS), (0,), clip.init(LAYERS))
    assert opened.values.tolist() == [2, 2, 4, 4, 8, 8]
    one = Clip({"*": 8.0, "conv1.*": 2.0})
    assert one.segments(one.init(LAYERS).shared) == ((0, 6, 8.0),)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.3, 0.85, 1.7, 2.91])
def test_values_at_the_threshold_are_within_it(
    way: str, alpha: float, caplog: pytest.LogCaptureFixture
) -> None:
    """An app that clips to alpha itself sends little but values at alpha; none of them is beyond."""
    edge = np.float32(alpha)
    if edge > alpha:
        edge = np.nextafter(edge, np.float32(0))
    codec = WAYS[way](Clip(alpha))
    codec.encode(Plain(np.full(200, edge), EXTRAS), codec.init(ONE_LAYER))
    assert not caplog.records


@pytest.mark.parametrize("way", [*WAYS, "statistics"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 199])
def test_not_finite_is_refused(way: str, bad: float, at: int) -> None:
    fitted = way == "statistics"
    codec = WAYS["fused"](Clip.history()) if fitted else WAYS[way](Clip(1.0))
    x = np.zeros(200, np.float32)
    x[at] = bad
    with pytest.raises(NotFiniteError):
        (codec.statistics if fitted else codec.encode)(Plain(x, EXTRAS), codec.init(ONE_LAYER))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("beyond", "warns"), [(0, 0), (2, 0), (3, 1), (100, 1), (101, 1), (200, 1)]
)
def test_what_is_clipped_is_told_here_alone(
    way: str, beyond: int, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    codec = WAYS[way](Clip(1.0))
    x = np.zeros(200, np.float32)
    x[:beyond:2], x[1:beyond:2] = 2.0, -2.0
    codec.encode(Plain(x, EXTRAS), codec.init(ONE_LAYER))
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * warns
    for record in caplog.records:
        bound = "half" if beyond > 100 else "1%"
        assert record.getMessage().startswith(f"more than {bound} of the update was clipped")
        assert re.findall(r"\d+", record.getMessage()) == ["1"] * (bound == "1%")


def test_nothing_to_clip_is_fine() -> None:
    layout = Layout((Entry("n", (), "int64"),))
    for way in WAYS.values():
        codec = way(Clip(1.0))
        encoded, _ = codec.encode(Plain(np.empty(0, np.float32), EXTRAS), codec.init(layout))
        assert encoded.values.size == 0


def test_parameters_are_exact() -> None:
    assert Clip(0.5).parameters() == {"name": "clip", "bound": [["*", "0x1.0000000000000p-1"]]}
    bounds = (0.1, np.nextafter(0.1, 1), {"a": 1.0, "*": 2.0}, {"*": 2.0, "a": 1.0})
    assert len({repr(Clip(bound).parameters()) for bound in bounds}) == 4
    assert Clip(3.0).out(Reals(float("inf"))) == Reals(1.0)


# --- Clip.history() and Clip.exchange() ---

RULES = {"history": Clip.history(), "exchange": Clip.exchange()}
C8 = aciq.ratio(8)
X = np.array([3, 4, 0, 0, -2, 2], np.float32)
"""Mean squares 12.5, 0 and 4 in the three layers of LAYERS."""

every_rule = pytest.mark.parametrize("rule", RULES)
every_way = pytest.mark.parametrize("fuse", [True, False])


def adaptive(rule: str, bits: int = 8, fuse: bool = True) -> Chain:
    return Chain((RULES[rule], Weigh(5), Quantize(bits)), fuse=fuse)


def fitted(codec: Chain, layout: Layout, *mean_squares: float) -> State:
    sums = squares.to_extras(np.array(mean_squares, np.float64))
    return codec.fitted(sums, 1, codec.init(layout))


def later(codec: Chain, layout: Layout, *mean_squares: float) -> State:
    """As `fitted`, in a round after: the thresholds come from the model's memory."""
    return codec.recall(layout, codec.memory(fitted(codec, layout, *mean_squares)))


def total_of(codec: Chain, state: State, *xs: NDArray[np.float32]) -> Plain:
    return summed([codec.encode(Plain(x, EXTRAS), state)[0] for x in xs])


@every_rule
def test_thresholds_are_of_the_senders_mean_squares(rule: str) -> None:
    codec = adaptive(rule)
    state = codec.init(LAYERS)
    assert codec.needs_mean_squares(state)
    parts = [codec.statistics(Plain(x, EXTRAS), state) for x in (X, 3 * X)]
    after = codec.fitted(parts[0] + parts[1], 2, state)
    assert not codec.needs_mean_squares(after)
    assert codec.needs_mean_squares(state), "the state before is left alone"
    means = (62.5, 0.0, 20.0)
    assert after.shared[0].mean_squares == means
    alphas = [C8 * m**0.5 for m in means]
    alphas[1] = alphas[0]  # nothing moved there: the largest of the others
    assert after.shared[0].alphas == tuple(alphas)
    assert codec.codecs[0].segments(after.shared[0]) == ((0, 4, alphas[0]), (4, 6, alphas[2]))
    chosen = Plain(X[[1, 4, 5]], EXTRAS, np.array([1, 4, 5], np.uint32))
    assert squares.mean(codec.statistics(chosen, state), 1, 3) == [16, 0, 4]
    none = codec.statistics(Plain(X[:0], EXTRAS, np.empty(0, np.uint32)), state)
    assert none.tolist() == [0] * 6
    assert codec.fitted(none, 1, state).shared[0].alphas == (1.0, 1.0, 1.0)


@every_way
def test_history_moves_half_way_with_every_sum(fuse: bool) -> None:
    """Updates that cancel leave a mean of zero; the thresholds still fit what clients send."""
    codec = adaptive("history", fuse=fuse)
    state = later(codec, LAYERS, 10, 2, 6)
    opened, after = codec.decode(total_of(codec, state, X, -X), (0, 1), state)
    assert opened.extras.tolist() == [2, 6], "the app's own extras are what is left"
    assert np.abs(opened.values).max() <= largest_error(codec, 2, state)
    assert after.shared[0].mean_squares == (11.25, 1.0, 5.0)
    assert after.shared[0].alphas == tuple(C8 * m**0.5 for m in (11.25, 1, 5))
    opened, last = codec.decode(total_of(codec, after, 2 * X), (1,), after)
    assert last.shared[0].mean_squares == (30.625, 0.5, 10.5)
    assert np.abs(opened.values - 2 * X).max() <= largest_error(codec, 1, after)


@every_way
def test_exchange_starts_anew_every_round(fuse: bool) -> None:
    codec = adaptive("exchange", fuse=fuse)
    state = fitted(codec, LAYERS, 12.5, 1, 4)
    opened, after = codec.decode(total_of(codec, state, X), (0,), state)
    assert opened.extras.tolist() == [1, 3]
    assert after == codec.init(LAYERS)


@every_way
def test_a_round_fitted_on_its_own_mean_squares_tells_them_once(fuse: bool) -> None:
    """Both sums are opened: where a client is in one of them only, the difference would be its own."""
    codec = adaptive("history", fuse=fuse)
    state = fitted(codec, LAYERS, 10, 2, 6)
    total = total_of(codec, state, X, -X)
    own = Quantize(8).join(total.extras)
    assert total.extras.size == codec.lanes(EXTRAS.size, LAYERS), (
        "the count of lanes is what it is in any round"
    )
    assert own[EXTRAS.size :].tolist() == [0] * 6
    opened, after = codec.decode(total, (0, 1), state)
    assert opened.extras.tolist() == [2, 6]
    assert after.shared[0].mean_squares == (10, 2, 6)
    assert not after.shared[0].ranged


@every_rule
@every_way
def test_nothing_is_encoded_without_thresholds(rule: str, fuse: bool) -> None:
    codec = adaptive(rule, fuse=fuse)
    state, total = codec.init(LAYERS), Plain(np.zeros(6, np.int32), Quantize(8).split(EXTRAS))
    for act, *arguments in (
        (codec.encode, Plain(X, EXTRAS), state),
        (codec.encode_parts, iter([X]), 6, EXTRAS, state),
        (codec.decode, total, (0,), state),
    ):
        with pytest.raises(ProtocolError, match="mean squares come first"):
            act(*arguments)


@every_rule
@every_way
def test_clipping_on_purpose_does_not_warn(
    rule: str, fuse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    codec = adaptive(rule, 2, fuse)
    x = np.random.default_rng(3).normal(size=200).astype(np.float32)
    state = fitted(codec, ONE_LAYER, 1.0)
    assert np.mean(np.abs(x) > aciq.ratio(2)) > 0.2
    codec.encode(Plain(x, EXTRAS), state)
    assert not caplog.records
    if rule == "exchange":
        codec.encode(Plain(3 * x, EXTRAS), state)
        assert "more than half of the update was clipped" in caplog.text


def test_history_follows_updates_that_outgrow_it(caplog: pytest.LogCaptureFixture) -> None:
    """Refusing them all would leave the thresholds where they are for ever."""
    codec = adaptive("history", 2)
    state = later(codec, ONE_LAYER, 1.0)
    x = 9 * np.random.default_rng(3).normal(size=200).astype(np.float32)
    encoded, _ = codec.encode(Plain(x, EXTRAS), state)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert not re.search(r"\d", caplog.text.partition("more than")[2])
    _, after = codec.decode(encoded, (0,), state)
    before = codec.memory(state)["clip.mean-square"]
    assert np.all(codec.memory(after)["clip.mean-square"] > 20 * before)


def test_what_the_history_remembers() -> None:
    codec, exchange, fixed = (
        adaptive("history"),
        adaptive("exchange"),
        chain(Clip(1.0), Quantize(8)),
    )
    assert codec.memory(codec.init(LAYERS)) == {}
    assert codec.recall(LAYERS, {}) == codec.init(LAYERS)
    state = fitted(codec, LAYERS, 10, 0, 6)
    memory = codec.memory(state)
    assert {name: (m.dtype, m.tolist()) for name, m in memory.items()} == {
        "clip.mean-square": (np.float64, [10, 0, 6])
    }
    again = codec.recall(LAYERS, memory)
    assert (again.shared[0].alphas, again.shared[0].ranged) == (state.shared[0].alphas, False)
    for other, start in (
        (exchange, fitted(exchange, LAYERS, 1, 1, 1)),
        (fixed, fixed.init(LAYERS)),
    ):
        assert other.memory(start) == {}
        with pytest.raises(ProtocolError, match="does not match"):
            other.recall(LAYERS, memory)
    with pytest.raises(ProtocolError, match="does not match"):
        codec.recall(LAYERS, memory | {"clip.other": np.ones(3)})


@pytest.mark.parametrize(
    "kept",
    [
        *(np.ones(2), np.ones((3, 1)), np.ones(3, np.float32)),
        *(np.array([1, bad, 1]) for bad in (np.nan, -1e-9, np.inf, 2.0**32)),
    ],
    ids=str,
)
def test_a_malformed_memory_is_refused(kept: NDArray[np.float64]) -> None:
    with pytest.raises(ProtocolError, match="not one mean square for each layer"):
        adaptive("history").recall(LAYERS, {"clip.mean-square": kept})


@every_way
def test_a_sum_whose_mean_squares_are_impossible_is_refused(fuse: bool) -> None:
    codec = adaptive("history", fuse=fuse)
    state = fitted(codec, LAYERS, 10, 2, 6)
    total = total_of(codec, state, X)
    quantize = Quantize(8)
    extras = quantize.join(total.extras)
    for at, value in ((2, -1), (2, squares.PART), (7, squares.PART)):
        bad = extras.copy()
        bad[at] = value
        with pytest.raises(ProtocolError, match="1 senders cannot reach"):
            codec.decode(total._replace(extras=quantize.split(bad)), (0,), state)
    with pytest.raises(ProtocolError, match="without the mean squares"):
        codec.decode(total._replace(extras=quantize.split(extras[:5])), (0,), state)


@every_rule
def test_bits_and_lanes(rule: str) -> None:
    first: Any = adaptive(rule, 5).codecs[0]
    assert (first.parameters(), first.precision) == ({"name": "clip", "rule": rule}, 5)
    alone = RULES[rule]
    with pytest.raises(ConfigError, match="2 to 32 bits"):
        alone.fitted(np.zeros(6, np.int64), 1, alone.init(LAYERS).shared)
    codec, own = adaptive(rule, 16), 6 if rule == "history" else 0
    assert codec.lanes(2, LAYERS) == (2 + own) * 5
    codec.check_cohort(2048)
    with pytest.raises(MisfitError, match=r"2049 clients overflows 63 bits; at most 2048 fit"):
        codec.check_cohort(2049)
    chain(Clip(1.0), Weigh(5), Quantize(16)).check_cohort(2049)


def test_thresholds_stay_within_bounds() -> None:
    assert aciq.thresholds(8, [1e-300, 1e300]) == (aciq.MIN_ALPHA, aciq.MAX_ALPHA)
    assert aciq.thresholds(8, []) == ()


def test_rules_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"no threshold for layer 'head'; add it or a '\*'"):
        Clip({"conv*": 1.0}).init(LAYERS)
    fixed = chain(Clip(1.0), Quantize(8))
    start = fixed.init(LAYERS)
    assert not fixed.needs_mean_squares(start)
    for act in (
        lambda: fixed.statistics(Plain(X, EXTRAS), start),
        lambda: fixed.fitted(np.zeros(6, np.int64), 1, start),
    ):
        with pytest.raises(ConfigError, match="no thresholds to fit"):
            act()


@pytest.mark.parametrize("fused", [True, False])
def test_zeros_stay_zeros_where_the_scale_leaves_float32(fused: bool) -> None:
    chain = Chain((Clip(1e-30), Weigh(2), Quantize(16)), fused)
    extras = np.array([1, 1 << 30])
    state = chain.init(layout_of({"w": np.zeros(3, np.float32)}))
    encoded, _ = chain.encode(Plain(np.array([0, -0.0, 0], np.float32), extras), state)
    assert encoded.values.tolist() == [0, 0, 0]

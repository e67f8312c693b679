"""Chains with a sparsifier in front: their order, their halves, and the pass that runs as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flhe.coding import squares
from flhe.coding.base import Codec, Plain, State
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.math.prg import PIECE
from tests.laws import BOUNDS, LAYOUT, random_source, summed

RULES: dict[str, Clip] = {
    "fixed": Clip(BOUNDS),
    "history": Clip.history(),
    "exchange": Clip.exchange(),
}
EXTRAS = np.array([1, 7, -9], np.int64)
every_rule = pytest.mark.parametrize("rule", RULES)


def update(seed: int, size: int = LAYOUT.floats) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 0.2, size).astype(np.float32)


def build(
    rule: str, bits: int = 16, ratio: float | None = 0.2, fuse: bool = True, draws: Any = None
) -> Chain:
    codecs: list[Codec] = [] if ratio is None else [TopK(ratio, warmup=0, small=0)]
    quantize = Quantize(bits, random=draws or random_source(5, 4 * PIECE))
    return Chain((*codecs, RULES[rule], Weigh(50), quantize), fuse=fuse)


def started(codec: Chain, layout: Layout, plain: Plain) -> State:
    """The state in which `plain` may be encoded, thresholds fitted on it alone."""
    state = codec.init(layout)
    if not codec.needs_mean_squares(state):
        return state
    selected, _ = codec.select(plain, state)
    return codec.fitted(codec.statistics(selected, state), 1, state)


def alike(one: Plain, other: Plain) -> bool:
    """Type and value of everything."""
    pairs = list(zip(one, other, strict=True))
    return all(a is b or (a.dtype == b.dtype and np.array_equal(a, b)) for a, b in pairs)


def test_error_feedback_keeps_what_a_lower_threshold_cuts() -> None:
    codec = build("fixed")
    for examples in (50, 400):
        plain = Plain(update(1), np.array([1, examples, -9], np.int64))
        state = started(codec, LAYOUT, plain)
        encoded, after = codec.encode(plain, state)
        opened, _ = codec.decode(encoded, (0,), state)
        assert np.abs(after.local[0] + opened.values - plain.values).max() < 1e-4, examples


LONG = Layout(
    (
        Entry("a", (PIECE + 3,), "float32"),
        Entry("b", (), "float32"),
        Entry("none", (0,), "float32"),
        Entry("c", (2 * PIECE - 1,), "float32"),
    )
)


@every_rule
@pytest.mark.parametrize(
    ("layout", "bits", "n"),
    [*((LAYOUT, *each) for each in ((2, 1), (8, 50), (17, 50), (32, 37), (16, 70))), (LONG, 16, 7)],
    ids=lambda value: "" if isinstance(value, Layout) else None,
)
@pytest.mark.parametrize("ratio", [0.2, 0.9, None])
def test_one_pass_gives_the_very_integers(
    rule: str, layout: Layout, bits: int, n: int, ratio: float | None
) -> None:
    """Some of the values beyond a threshold of 0.7; 70 examples are more than have a weight."""
    plain = Plain(2 * update(3, layout.floats), np.array([1, n, -9], np.int64))
    apart, fused = (build(rule, bits, ratio, fuse) for fuse in (False, True))
    state = started(apart, layout, plain)
    one, two = (codec.encode(plain, state)[0] for codec in (apart, fused))
    assert alike(one, two)
    total = summed([one, two])
    (near, after), (also, later) = (codec.decode(total, (0, 1), state) for codec in (apart, fused))
    wide = near.values.astype(np.float32)
    assert (np.abs(wide - also.values) <= np.spacing(np.abs(wide))).all()
    assert near.extras.tolist() == also.extras.tolist() == [2, 2 * n, -18]
    assert after.shared == later.shared


@every_rule
@pytest.mark.parametrize("ratio", [0.2, None])
@pytest.mark.parametrize("size", [1, 77, 1000])
def test_parts_are_encoded_like_a_whole_vector(rule: str, ratio: float | None, size: int) -> None:
    codec, x = build(rule, ratio=ratio), update(5)
    state = started(codec, LAYOUT, Plain(x, EXTRAS))
    whole, after = codec.encode(Plain(x, EXTRAS), state)
    parts = (x[at : at + size] for at in range(0, x.size, size))
    encoded, also = codec.encode_parts(parts, x.size, EXTRAS, state)
    assert encoded.values.tolist() == whole.values.tolist()
    assert after.shared == also.shared
    extras = [Quantize(16).join(p.extras) for p in (encoded, whole)]
    assert extras[0][:3].tolist() == extras[1][:3].tolist() == EXTRAS.tolist()
    if rule == "history":  # squares are added up in another order
        means = [squares.mean(e[3:], 1, 4) for e in extras]
        assert means[0] == pytest.approx(means[1], rel=1e-14)

"""Clip: one threshold, one a layer, and what is too much."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from flhe.coding.base import Plain, Reals
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, NotFiniteError

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


def test_thresholds_that_cannot_be() -> None:
    for alpha in (0.0, -1.0, float("nan"), float("inf"), 1e-40, 1e40):
        for bound, says in (
            (alpha, "alpha must"),
            ({"*": 1.0, "head": alpha}, "Clip.head: .*alpha"),
        ):
            with pytest.raises(ConfigError, match=says):
                Clip(bound)
    with pytest.raises(ConfigError, match=r"no threshold for layer 'head'; add it or a '\*'"):
        Clip({"conv*": 1.0}).init(LAYERS)


def test_parameters_are_exact() -> None:
    assert Clip(0.5).parameters() == {"name": "clip", "bound": [["*", "0x1.0000000000000p-1"]]}
    bounds = (0.1, np.nextafter(0.1, 1), {"a": 1.0, "*": 2.0}, {"*": 2.0, "a": 1.0})
    assert len({repr(Clip(bound).parameters()) for bound in bounds}) == 4
    assert Clip(3.0).out(Reals(float("inf"))) == Reals(1.0)

"""A server that asks under one clipping threshold after another: each refusal halves its doubt.

19 refusals gave the median of a layer's gradient, 20 an exact example count.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.mods.harness import TERMS, App, Group, codec, update


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 1.0, 1e3])
def test_no_threshold_makes_a_node_refuse(
    tmp_path: Path, bound: float, caplog: pytest.LogCaptureFixture
) -> None:
    terms = dataclasses.replace(TERMS, codec=codec(clip=bound))
    group = Group(tmp_path, terms=terms).agree()
    group.sites[0].app = App(step=0.1)
    update(group.ask(group.sites[0]))
    mostly = "more than half of the update was clipped" in caplog.text
    assert mostly == bool(np.float32(bound) < 0.1)  # which the node itself is told


@pytest.mark.parametrize("count", [1, 100, 101, 1 << 40, 1 << 62])
def test_no_bound_on_examples_makes_a_node_refuse(tmp_path: Path, count: int) -> None:
    group = Group(tmp_path).agree()
    group.sites[0].app = App(examples=count)
    update(group.ask(group.sites[0]))

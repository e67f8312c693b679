"""A server that asks under one clipping threshold after another: each refusal halves its doubt.

19 refusals gave the median of a layer's gradient, 20 an exact example count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from flhe.coding.base import Codec
from flhe.coding.chain import chain
from flhe.coding.clip import Clip
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.mods import records
from flhe.training.schedule import Settings
from tests.mods.harness import App, Group, Site, answer, arrays, codec, refused, support, update


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 1.0, 1e3])
def test_no_threshold_makes_a_node_refuse(
    tmp_path: Path, bound: float, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(tmp_path, codec=codec(clip=bound)).agree()
    group.sites[0].app = App(step=0.1)
    update(group.ask(group.sites[0]))
    mostly = "more than half of the update was clipped" in caplog.text
    assert mostly == bool(np.float32(bound) < 0.1)  # which the node itself is told


@pytest.mark.parametrize("count", [1, 100, 101, 1 << 40, 1 << 62])
def test_no_bound_on_examples_makes_a_node_refuse(group: Group, site: Site, count: int) -> None:
    site.app = App(examples=count)
    update(group.ask(site))


@pytest.mark.parametrize("count", [10, 11])
@pytest.mark.parametrize(
    "steps",
    [
        (Weigh(10), Clip(1.0), Quantize(16)),
        (ClipNorm(1.0), Weigh(10), Quantize(16)),
        (TopK(0.5), Weigh(10), Clip(1.0), Quantize(16), Permute()),
    ],
    ids=["clip behind", "no clip", "sparse"],
)
def test_nor_does_a_chain_that_weighs_before_it_cuts(
    tmp_path: Path, steps: tuple[Codec, ...], count: int
) -> None:
    """No step scales the values of a site with more examples: it counts with fewer."""
    group = Group(tmp_path, codec=chain(*steps)).agree()
    group.sites[0].app = App(examples=count)
    reply = group.ask(group.sites[0])
    if group.terms.codec.sparse:
        support(reply)
        reply = group.ask(group.sites[0], "update")
    answer(reply)


class Linear(App):
    """It steps by the model times what it knows of a patient, and the rate that the contract says."""

    def __init__(self, patient: float) -> None:
        super().__init__()
        self.patient = np.float32(patient)

    def __call__(self, message: Message, context: Context) -> Message:
        self.rate: Any = message.content["config"]["lr"]  # type: ignore[index]
        return super().__call__(message, context)

    def trained(self, record: Any) -> ArrayRecord:
        before = records.to_numpy(record)
        with np.errstate(over="ignore", invalid="ignore"):
            stepped = before["w"] + before["w"] * self.patient * np.float32(self.rate)
        return records.from_numpy({**before, "w": stepped})


@pytest.mark.parametrize("patient", [1.0, 4.0])
@pytest.mark.parametrize(("first", "rate"), [(1e38, 1.0), (1.0, 1e38)], ids=["model", "rate"])
def test_a_model_or_a_rate_that_overflows_for_some_records_tells_who_has_one(
    tmp_path: Path, first: float, rate: float, patient: float
) -> None:
    """It works: docs/limits.md says so. An update that is not finite cannot be added.

    The server may choose the first model, and the rate.
    """
    group = Group(tmp_path, train=Settings({"lr": rate}))
    chosen = {**arrays(), "w": np.full((3, 4), first, np.float32)}
    group.start = {"arrays": records.from_numpy(chosen)}
    group.agree().sites[0].app = Linear(patient)
    reply = group.ask(group.sites[0])
    assert reply.has_error() == (patient > 3.5)
    if reply.has_error():
        refused(reply, 1027)

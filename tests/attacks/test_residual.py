"""A server that aims at what sparse updates keep back: to see it alone, or to count it twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from flhe.mods import records
from tests.mods.harness import SPARSE, App, Group, answer, support, update


class Obeys(App):
    """An app that steps by the learning rate that it is told."""

    def __call__(self, message: Message, context: Context) -> Message:
        self.step = message.content["config"]["lr"]  # type: ignore[assignment, index]
        return super().__call__(message, context)


def test_a_residual_is_no_way_into_a_later_sum(tmp_path: Path) -> None:
    """The other members have agreed anew, and are told to stand still; then so is the victim.

    The whole update came into the next sum, alone.
    """
    group = Group(tmp_path, 4, SPARSE).agree()
    for site in group.sites:
        site.app = Obeys()
    victim, *others = group.sites
    support(group.ask(victim))
    group.renew(lr=0.0)
    told = [support(group.ask(s, attempt=1)) for s in others]
    parts = [
        update(group.ask(s, "update", mode="double", attempt=1), [t])
        for s, t in zip(others, told, strict=True)
    ]
    first = group.total(parts)
    then: dict[str, Any] = {"round_": 2, "sums": [first]}
    told = [support(group.ask(s, **then)) for s in group.sites]
    parts = [
        update(group.ask(s, "update", mode="double", round_=2), [t])
        for s, t in zip(group.sites, told, strict=True)
    ]
    before = others[0].model.masters["w"]
    answer(group.evaluate(others[0], group.total(parts)))
    np.testing.assert_allclose(others[0].model.masters["w"], before, atol=1e-3)


class Sloped(App):
    """Steps that differ from value to value, so that a part of each update is kept back."""

    def trained(self, record: Any) -> ArrayRecord:
        after = records.to_numpy(super().trained(record))
        slope = np.arange(1, 13, dtype=np.float32).reshape(3, 4) * np.float32(self.step)
        return records.from_numpy({**after, "w": records.to_numpy(record)["w"] + slope})


def test_a_residual_in_a_round_that_was_left_counts_once(tmp_path: Path) -> None:
    """The victim sends it, is asked alone for the next round, and takes the others' checkpoint."""
    group = Group(tmp_path, 4, SPARSE).agree()
    *others, victim = group.sites
    for site in others:
        site.app = Sloped(0.0)
    victim.app = Sloped(0.01)
    group.open(group.total(group.sparse_parts(group.supports())))
    assert "residual" in victim.files
    victim.app = Sloped(0.0)  # from here on it sends nothing but what was kept back
    second = group.total(group.sparse_parts(group.supports(round_=2), round_=2))
    support(group.ask(victim, round_=3))
    for site in others:
        answer(group.evaluate(site, second))
    answer(group.ask(victim, "sync", extra=group.box(others[0])))
    moved = others[0].model.masters["w"]
    third = group.total(group.sparse_parts(group.supports(round_=4), round_=4))
    group.open(third)
    np.testing.assert_allclose(others[0].model.masters["w"], moved, atol=1e-3)

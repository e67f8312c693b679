"""A server that has one site train, and tells all to stand still in the next round.

Sparse updates keep what they have not sent: the whole update came into the next sum, alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from tests.mods.harness import SPARSE, App, Group, answer, support, update


class Obeys(App):
    """An app that steps by the learning rate that it is told."""

    def __call__(self, message: Message, context: Context) -> Message:
        self.step = message.content["config"]["lr"]  # type: ignore[assignment, index]
        return super().__call__(message, context)


def test_a_residual_is_no_way_into_a_later_sum(tmp_path: Path) -> None:
    """The other members have agreed anew, and are told to stand still; then so is the victim."""
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

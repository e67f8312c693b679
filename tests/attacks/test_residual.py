"""A server that has one site train, and tells all to stand still in the next round.

Sparse updates keep what they have not sent: the whole update came into the next sum, alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from flhe.training.start import hash_app_inputs
from tests.mods.harness import SPARSE, App, Group, answer, support, update


class Obeys(App):
    """An app that steps by the learning rate that it is told."""

    def __call__(self, message: Message, context: Context) -> Message:
        self.step = message.content["config"]["lr"]  # type: ignore[assignment, index]
        return super().__call__(message, context)


STILL = {"lr": 0.0}
TOLD_STILL = {"extra": {"config": ConfigRecord(STILL)}}
HASH = hash_app_inputs({"config": STILL}, {})


def test_a_residual_is_no_way_into_a_later_sum(tmp_path: Path) -> None:
    group = Group(tmp_path, 4, SPARSE).agree()
    for site in group.sites:
        site.app = Obeys()
    victim, *others = group.sites
    support(group.ask(victim))  # told lr=0.1, and kept out of the sum
    told = [support(group.ask(s, **TOLD_STILL)) for s in others]
    mode = {**TOLD_STILL, "mode": "double"}
    parts = [update(group.ask(s, "update", **mode), [t]) for s, t in zip(others, told, strict=True)]
    first = group.total(parts)
    then = {"round_": 2, "sums": [first], "app-inputs": [HASH], **TOLD_STILL}
    told = [support(group.ask(s, **then)) for s in group.sites]
    parts = [
        update(group.ask(s, "update", mode="double", round_=2, **TOLD_STILL), [t])
        for s, t in zip(group.sites, told, strict=True)
    ]
    before = others[0].model.masters["w"]
    second = group.total(parts)
    answer(group.evaluate(others[0], second, **{"app-inputs": [HASH]}))
    np.testing.assert_allclose(others[0].model.masters["w"], before, atol=1e-3)

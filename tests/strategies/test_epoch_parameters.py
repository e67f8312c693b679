"""What both sides derive of an epoch: the server asks for what the nodes are about to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flhe.coding.select import Select
from flhe.mods import HEMod
from flhe.strategies import FlasheFedAvg
from tests.strategies.puppets import Node, Puppets, play, told
from tests.strategies.test_selected_rounds import sensitive

pytestmark = pytest.mark.usefixtures("quick")

STEPS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "fixed": ({"clip": 1.0}, []),
    "history": ({"clip": "history"}, [1]),
    "exchange": ({"clip": "exchange"}, [1, 2, 3]),
    "history after a map": ({"clip": "history", "select": Select(0.5, rest="drop")}, [2]),
    "exchange after a map": ({"clip": "exchange", "select": Select(0.5, rest="drop")}, [2, 3, 4]),
}
"""How it is run, and the rounds that begin with mean squares."""


@pytest.mark.parametrize(("how", "rounds"), STEPS.values(), ids=list(STEPS))
def test_mean_squares_are_asked_for_when_they_are_due(
    tmp_path: Path, how: dict[str, Any], rounds: list[int]
) -> None:
    grid = Puppets(tmp_path, 3, Node(HEMod(sensitivity=sensitive)))
    found = list[int]()

    def noted(node: int, stage: str, reply: Any) -> Any:
        if node == 100 and stage == "round" and told(reply)["step"] == "mean-squares":
            found.append(grid.round)
        return reply

    grid.forge = noted
    play(FlasheFedAvg, grid, 3, weighted=False, **how)
    assert found == rounds
    assert grid.survivors == [3] * len(grid.reports)

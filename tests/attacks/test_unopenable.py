"""A member that voids rounds: it deals a box that does not open, signs the set, and goes silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from tests.strategies.puppets import Log, Puppets, told
from tests.strategies.test_sash_rounds import run

pytestmark = pytest.mark.usefixtures("quick")

NODES, LIAR = 4, 3
"""c = 1, t = 3: with one that cannot open its share, and one that is silent, two are left."""


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_who_makes_a_set_unopenable_is_named_and_left_out(
    tmp_path: Path, caplog: Log, unmask: str
) -> None:
    """Three rounds were void, the run was over, and nobody was named."""
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, NODES)

    def spoilt(_: int, reply: Message) -> None:
        record: Any = told(reply)
        boxes = list(record["shares"])
        first = next(i for i, box in enumerate(boxes) if box)
        boxes[first] = boxes[first][:-1] + bytes([boxes[first][-1] ^ 1])
        record["shares"] = boxes

    grid.lies([100 + LIAR], "round", spoilt)
    for round_ in range(1, 6):
        grid.drop(round_, "unmask", "dead", (LIAR,))
    strategy, _ = run(grid, 5, unmask)
    fed = strategy._fed
    assert fed.nodes_of(fed.barred) == [100 + LIAR]
    assert f"node {100 + LIAR} is left out from now on: its shares do not decrypt" in caplog.text
    assert grid.survivors[-3:] == [3, 3, 3]

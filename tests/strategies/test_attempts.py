"""Attempts at a round: a resumed run goes on with the one that was under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.mods import records
from flhe.strategies import FlasheFedAvg
from tests.strategies.puppets import Puppets, play, refused, same

pytestmark = pytest.mark.usefixtures("quick")


def test_a_resumed_run_asks_under_the_next_attempt(tmp_path: Path) -> None:
    """Not under the first one again: nodes would send what they sent, and the others nothing."""
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, stage, round_: "silent" if stage == "round" and round_ == 2 else None
    how = {"state_dir": tmp_path / "server", "retries": 1, "fraction_evaluate": 0.0}
    assert refused(FlasheFedAvg, grid, **how).startswith("round 2: 0 updates")
    again = Puppets(tmp_path, 4, run_id=8)
    again.federation = 7
    play(FlasheFedAvg, again, 3, start={"resume": True}, **how)
    asked = [content[records.STAGE] for node, stage, content in again.sent if stage == "round"]
    assert [(stage["round"], stage["attempt"]) for stage in asked] == [(2, 2)] * 4 + [(3, 0)] * 4
    same(again, range(4))

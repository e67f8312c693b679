"""Catching up: who has sealed or checked a checkpoint is where the others are to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.strategies import FlasheFedAvg
from tests.strategies.puppets import Puppets, play, same

pytestmark = pytest.mark.usefixtures("quick")


def test_who_sealed_a_checkpoint_is_not_sent_it(tmp_path: Path) -> None:
    """Nor is the one that has verified it; nobody else has opened the round's sum yet."""
    grid = Puppets(tmp_path, 5)
    play(FlasheFedAvg, grid, 2, checkpoint_every=1, fraction_evaluate=0.0)
    sealed, synced = grid.stages("checkpoint"), grid.stages("sync")
    assert len(sealed) == 2
    assert len(synced) == 2 * 3
    assert not set(sealed) & set(synced)
    same(grid, range(5))

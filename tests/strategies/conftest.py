"""What the tests of strategies share."""

from __future__ import annotations

import os

import pytest

from flhe.strategies import grid as grid_module
from tests.strategies.puppets import Clock


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for silent nodes in real time, nor for disks: the store has tests of its own."""
    monkeypatch.setattr(grid_module, "time", Clock())
    monkeypatch.setattr(os, "fsync", lambda handle: None)

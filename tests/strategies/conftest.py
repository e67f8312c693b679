"""What the tests of strategies share."""

from __future__ import annotations

import pytest

from flhe.strategies import grid as grid_module
from tests.strategies.puppets import Clock


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for silent nodes in real time."""
    monkeypatch.setattr(grid_module, "time", Clock())

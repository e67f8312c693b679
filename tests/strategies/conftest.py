"""What the tests of strategies share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flhe.strategies import grid as grid_module
from tests.strategies.puppets import Clock


@contextmanager
def quickly() -> Iterator[None]:
    """Nobody waits for silent nodes in real time, nor for disks: the store has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "time", Clock())
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def quick() -> Iterator[None]:
    with quickly():
        yield

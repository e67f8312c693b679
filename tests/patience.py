"""How long a test waits for another process or thread: no test means the clock, so all wait alike."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900.0
"""Enough on a machine with ten times the load."""


def until(true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until `true()` holds; AssertionError after `seconds`."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, f"waited {seconds:g} s"
        time.sleep(0.05)

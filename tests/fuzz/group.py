"""Members who have agreed on a key, twice, and their messages: what honest samples are made of."""

from __future__ import annotations

import atexit
import functools
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flhe.keys.seal import ModelKey
from flhe.schemes.sealed import Slot
from tests.keys import agreement
from tests.keys.agreement import Exchange, roster_of

SIZE = 4
RUN = 2**63 + 77
IDS = agreement.sites(SIZE)
ROSTER = replace(roster_of(IDS, 1, ("flashe", "sash")), revoked=(bytes([9]) * 32,))
KEY = ModelKey(bytes(16), RUN, ROSTER.hash, bytes(range(32)))


@functools.cache
def scratch() -> Path:
    """A directory for as long as the process lives."""
    made = tempfile.TemporaryDirectory(prefix="fuzz-")
    atexit.register(made.cleanup)
    return Path(made.name)


def source(label: str) -> Callable[[int], bytes]:
    """Bytes that are the same each time, so that a failure can be had again."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{label} {count}".encode()).digest(size)

    return draw


def replaced(messages: Sequence[bytes], old: bytes, new: bytes) -> list[bytes]:
    """The same messages with another one in the place of one."""
    return [new if message == old else message for message in messages]


@functools.cache
def exchange(number: int = 0) -> Exchange:
    """An agreement of all, the same each time."""
    return agreement.exchange(IDS, RUN, number, ROSTER, source(f"exchange {number}"))


def slot(attempt: int = 0) -> Slot:
    """A round of the first epoch."""
    return Slot(
        RUN, ROSTER.hash, exchange().epochs[0].id, 3, attempt, bytes([4]) * 32, bytes([5]) * 32
    )

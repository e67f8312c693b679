"""Members who have agreed on a key, twice, and their messages: what honest samples are made of."""

from __future__ import annotations

import atexit
import functools
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flhe.keys.agreement import epoch
from flhe.keys.agreement.epoch import Advertised, Confirmed, Epoch, Shared
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.schemes.sealed import Slot

SIZE = 4
RUN = 2**63 + 77
CONTRACT = bytes(range(32))
"""Hash of the contract that messages are for."""

IDS = sorted((Identity(bytes([i + 1]) * 32) for i in range(SIZE)), key=lambda each: each.public)
ROSTER = Roster(
    tuple(Member(f"site-{'abcd'[i]}", each.public) for i, each in enumerate(IDS)),
    collusion=1,
    min_survivors=2,
    schemes=("flashe", "sash"),
    revoked=(bytes([9]) * 32,),
)


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


@dataclass(frozen=True)
class Exchange:
    """One key agreement, message by message; everything by rank."""

    advertised: list[Advertised]
    hellos: list[bytes]
    shared: list[Shared]
    shares: list[bytes]
    confirmed: list[Confirmed]
    confirms: list[bytes]

    @functools.cached_property
    def epochs(self) -> list[Epoch]:
        return [epoch.finish(state, self.confirms) for state in self.confirmed]

    def share(self, sender: int, receiver: int) -> bytes:
        """The SHARE between two ranks."""
        heads = [Envelope.from_bytes(share, 1024).header for share in self.shares]
        wanted = (IDS[sender].public, IDS[receiver].public)
        return self.shares[[(head.sender, head.receiver) for head in heads].index(wanted)]


def replaced(messages: Sequence[bytes], old: bytes, new: bytes) -> list[bytes]:
    """The same messages with another one in the place of one."""
    return [new if message == old else message for message in messages]


@functools.cache
def exchange(number: int = 0) -> Exchange:
    """An agreement of all, the same each time."""
    draw = source(f"exchange {number}")
    begun = [epoch.advertise(each, RUN, number, ROSTER, CONTRACT, draw) for each in IDS]
    hellos = [message for _, message in begun]
    shared = [epoch.share(state, hellos, draw) for state, _ in begun]
    shares = [message for _, messages in shared for message in messages]
    done = [epoch.confirm(state, shares) for state, _ in shared]
    return Exchange(
        [state for state, _ in begun],
        hellos,
        [state for state, _ in shared],
        shares,
        [state for state, _ in done],
        [message for _, message in done],
    )


def slot(attempt: int = 0) -> Slot:
    """A round of the first epoch."""
    return Slot(
        RUN, ROSTER.hash, exchange().epochs[0].id, 3, attempt, bytes([4]) * 32, bytes([5]) * 32
    )

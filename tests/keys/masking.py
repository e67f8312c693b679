"""A group of members as an agreement leaves them, for tests."""

from __future__ import annotations

import functools

from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster


@functools.cache
def group(size: int, collusion: int = 0) -> tuple[tuple[Identity, ...], tuple[Epoch, ...]]:
    """Identities and epochs by rank, as an agreement would leave them."""
    made = sorted(
        (Identity((i + 1).to_bytes(32, "big")) for i in range(size)), key=lambda i: i.public
    )
    members = tuple(Member(f"site-{i}", each.public) for i, each in enumerate(made))
    roster = Roster(members, collusion, 2, ("*",))

    def key(a: int, b: int) -> bytes:
        return b"" if a == b else bytes([min(a, b), max(a, b)]) * 16

    epochs = tuple(
        Epoch(
            id=bytes(range(16)),
            number=4,
            run_id=2**64 - 3,
            roster=roster,
            members=roster.publics,
            rank=rank,
            group_key=bytes(32),
            pair_keys=tuple(key(rank, other) for other in range(size)),
        )
        for rank in range(size)
    )
    return tuple(made), epochs

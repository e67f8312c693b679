"""Key agreement among members who are all honest, for tests of what comes after it."""

from __future__ import annotations

from collections.abc import Sequence

from flhe.keys.agreement.epoch import Confirmed, Epoch, advertise, confirm, finish, share
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster


def sites(size: int) -> list[Identity]:
    """Identities in order of rank."""
    return sorted((Identity(bytes([i + 1]) * 32) for i in range(size)), key=lambda one: one.public)


CONTRACT = bytes([7]) * 32
"""Hash of what the run does."""


def roster_of(
    identities: Sequence[Identity], collusion: int, schemes: tuple[str, ...] = ("*",)
) -> Roster:
    """They, by the names site-0 and so on."""
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    return Roster(members, collusion, 2, schemes)


def confirmed(
    identities: Sequence[Identity], run_id: int, number: int = 0, roster: Roster | None = None
) -> tuple[list[Confirmed], list[bytes]]:
    """Every member, once all have confirmed; and what they said."""
    started = [advertise(identity, run_id, number, roster, CONTRACT) for identity in identities]
    shared = [share(state, [m for _, m in started]) for state, _ in started]
    sent = [m for _, messages in shared for m in messages]
    done = [confirm(state, sent) for state, _ in shared]
    return [state for state, _ in done], [message for _, message in done]


def agreed(
    identities: Sequence[Identity], run_id: int, number: int, roster: Roster
) -> tuple[Epoch, ...]:
    """An epoch as each of its members holds it, by rank."""
    states, confirms = confirmed(identities, run_id, number, roster)
    return tuple(sorted((finish(state, confirms) for state in states), key=lambda e: e.rank))

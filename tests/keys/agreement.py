"""Key agreement among members who are all honest, for tests of what comes after it."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flhe.keys.agreement import epoch
from flhe.keys.agreement.epoch import Advertised, Confirmed, Epoch, Shared
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.wire.secret import Random

LONGEST = 1 << 21
"""Bytes; no message is longer."""


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


@dataclass(frozen=True)
class Exchange:
    """One key agreement, message by message; everything by rank."""

    advertised: list[Advertised]
    hellos: list[bytes]
    shared: list[Shared]
    sent: list[list[bytes]]
    confirmed: list[Confirmed]
    confirms: list[bytes]

    @functools.cached_property
    def epochs(self) -> list[Epoch]:
        return [epoch.finish(state, self.confirms) for state in self.confirmed]

    @property
    def shares(self) -> list[bytes]:
        return [message for messages in self.sent for message in messages]

    def share(self, sender: int, receiver: int) -> bytes:
        """The SHARE between two ranks."""
        return self.sent[sender][receiver - (receiver > sender)]


def exchange(
    identities: Sequence[Identity],
    run_id: int,
    number: int = 0,
    roster: Roster | None = None,
    random: Random = secrets.token_bytes,
) -> Exchange:
    """An agreement of all, who are in order of rank."""
    begun = [epoch.advertise(one, run_id, number, roster, CONTRACT, random) for one in identities]
    advertised, hellos = map(list, zip(*begun, strict=True))
    ready = zip(identities, advertised, strict=True)
    done = [epoch.share(one, state, hellos, random) for one, state in ready]
    shared, sent = map(list, zip(*done, strict=True))
    shares = [message for messages in sent for message in messages]
    at = zip(identities, shared, strict=True)
    ended = [epoch.confirm(one, state, shares) for one, state in at]
    confirmed, confirms = map(list, zip(*ended, strict=True))
    return Exchange(advertised, hellos, shared, sent, confirmed, confirms)


def agreed(
    identities: Sequence[Identity], run_id: int, number: int, roster: Roster
) -> tuple[Epoch, ...]:
    """An epoch as each of its members holds it, by rank."""
    done = exchange(identities, run_id, number, roster)
    return tuple(sorted(done.epochs, key=lambda each: each.rank))


def opened(message: bytes) -> Envelope:
    return Envelope.from_bytes(message, LONGEST)


def resigned(
    signer: Identity, message: bytes, payload: bytes | None = None, **changes: Any
) -> bytes:
    """The same message by another, or with another payload or header."""
    header = replace(opened(message).header, **{"sender": signer.public, **changes})
    kept = opened(message).payload if payload is None else payload
    return Envelope.seal(signer, header, kept).to_bytes()

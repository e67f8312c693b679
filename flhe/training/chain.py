"""Chain of a model: one link for each sum in it.

    history = SHA-256( CBOR ["flhe/v1/history", history before, round, digest of the sum, senders] )

A model carries its links, and so does a sealed checkpoint. Members that opened the same sums have
the same links. A reader refuses a checkpoint without its own result in the links: the server showed
the sites different sums of a round. The server computes the same histories from the sums that it
relays, so links reveal nothing more to it.

Source: docs/protocol.md (The chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flhe.errors import EquivocationError
from flhe.schemes.sealed import Sealed
from flhe.wire.derive import hash_of

MAX_LINKS = 1024
"""Maximum number of links that a model keeps."""
MAX_BYTES = 1 << 20
"""Maximum size of a model's links in bytes: long lists of senders leave room for fewer links."""
SHORT = 8
"""Bytes of a public key that identify a sender in a link; `Roster.name` shows the same ones."""


class Link(NamedTuple):
    """One sum: its round, the history before it, its digest and its senders.

    `before` and `digest` have 32 bytes; `senders` has the first `SHORT` bytes of each sender's public
    key, in order of rank.
    """

    round: int
    before: bytes
    digest: bytes
    senders: bytes

    @property
    def history(self) -> bytes:
        """History of a model with this sum, 32 bytes."""
        return hash_of("history", self.before, self.round, self.digest, self.senders)

    def names(self, public: bytes) -> bool:
        """Return whether the member with this public key is among the senders."""
        senders = self.senders
        return public[:SHORT] in (senders[i : i + SHORT] for i in range(0, len(senders), SHORT))


Chain = tuple[Link, ...]


def link_of(before: bytes, total: Sealed, digest: bytes, members: Sequence[bytes]) -> Link:
    """Return the link of a sum with this digest; `members` are its epoch's public keys, by rank."""
    senders = b"".join(members[rank][:SHORT] for rank in total.senders)
    return Link(total.slot.round, before, digest, senders)


def extended(chain: Chain, link: Link) -> Chain:
    """Return the chain with one more link; the oldest ones are dropped beyond the limits."""
    room = MAX_BYTES // (80 + len(link.senders))
    return (*chain, link)[-min(MAX_LINKS, room) :]


def results(chain: Chain, history: bytes) -> dict[int, bytes]:
    """Return the history after each round, from a model's links and its `history`."""
    ends = [*(link.before for link in chain[1:]), history]
    return {link.round: end for link, end in zip(chain, ends, strict=False)}


def check(chain: Chain, history: bytes, round_: int) -> None:
    """Refuse links that do not lead to a model of this `round_` with this `history`.

    Raises EquivocationError: a history does not follow from its link, rounds do not rise, or a
    model other than the first has no link.
    """
    ends = results(chain, history)
    follow = all(link.history == ends[link.round] for link in chain)
    if not follow or [k.round for k in chain] != sorted(ends) or max(ends, default=0) != round_:
        raise EquivocationError("the links of the checkpoint do not lead to its history")


def last_with(chain: Chain, public: bytes) -> int:
    """Return the last round whose sum has this member's update, or 0."""
    return max((link.round for link in chain if link.names(public)), default=0)


def without(chain: Chain, public: bytes, after: int, upto: int) -> list[int]:
    """Return the rounds beyond `after`, up to `upto`, whose sums lack this member's update."""
    return [k.round for k in chain if after < k.round <= upto and not k.names(public)]

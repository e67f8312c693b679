"""A key that no member has: each member draws a part of it, and holds a share of the whole.

    KEY-COMMIT   i -> all   32 bytes, a commitment to the public side of i's part
    KEY-REVEAL   i -> j     that public side, and j's share of the secret side: sealed for j alone
    KEY-SHARED   i -> all   the name of the public key, 32 bytes

The adder defines parts and shares (`draw`, `reveal`, `finish`); this module transports them.
Without KEY-COMMIT the last member could choose its part so that the sum of all is a key of its own.

If asked twice, an epoch answers the same, except for the nonces of boxes. A share that does not fit
makes sums that do not open; nothing here identifies its sender.

Source: docs/protocol.md; commitments before shares: Asharov et al., EUROCRYPT 2012.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.agreement import broadcast
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.messages import Envelope, Header
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.keys.agreement.states import MAX_STATE, Epoch
from flhe.keys.identity import Identity
from flhe.wire.fields import SECRET, Hash
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

COMMIT, REVEAL, SHARED = "key-commit", "key-reveal", "key-shared"
MAX_BOX = 1 << 21
"""Maximum length of a KEY-REVEAL, bytes: a public side and a share, of some 200 KB each."""


@dataclass(frozen=True, slots=True)
class _Part(Record):
    """State before the key is known; commitments by rank, once all have arrived."""

    FORM = Form("stored part of a key", MAX_STATE, "key-part", 1, row=True)

    part: Annotated[bytes, SECRET]
    commitment: Hash
    commitments: tuple[Hash, ...] = ()


def commit(
    identity: Identity, agreed: Epoch, adder: Any, random: Random = secrets.token_bytes
) -> tuple[Epoch, bytes]:
    """Draw this member's part; return the epoch with it, and the KEY-COMMIT.

    The adder knows no key yet.

    Raises ProtocolError: the roster allows for so many colluders that they could open sums alone;
    the key is known in this agreement.
    """
    need, given_up = adder.scheme.threshold_of(agreed.size), SharingParameters.of(agreed).given_up
    # So many may still answer for a set that is given up.
    most = agreed.size + agreed.roster.collusion - given_up
    if need <= most:
        raise ProtocolError(
            f"{need} members open a sum together, and in this roster {most} could that collude or "
            "have not given it up: raise the scheme's threshold"
        )
    if not agreed.scheme_secret:
        common = broadcast.layout(COMMIT, agreed.id)  # every member contributed to the epoch's id
        drawn, bound = adder.draw(agreed.rank, common, random)
        agreed = replace(agreed, scheme_secret=_Part(drawn, bound).to_bytes())
    commitment = broadcast.Digest(_part(agreed).commitment)
    return agreed, broadcast.signed(identity, agreed, COMMIT, commitment.to_bytes())


def reveal(
    identity: Identity,
    agreed: Epoch,
    messages: list[bytes],
    adder: Any,
    random: Random = secrets.token_bytes,
) -> tuple[Epoch, list[bytes]]:
    """Take all KEY-COMMITs, own included, in any order; return a KEY-REVEAL for each other member.

    Raises AuthenticationError: a signature that does not verify; the own message was changed;
    ProtocolError: a message missing, repeated or of another exchange; other commitments than those
    answered before.
    """
    part, head = _part(agreed), broadcast.header_of(agreed, COMMIT, identity.public)
    found = broadcast.one_each(agreed, messages, head)
    told = [broadcast.Digest.from_bytes(found[rank].payload).value for rank in range(agreed.size)]
    if told[agreed.rank] != part.commitment:
        raise AuthenticationError("own KEY-COMMIT was changed on the way: start over")
    if part.commitments and list(part.commitments) != told:
        raise ProtocolError("other commitments than before in this key agreement: start over")
    out = []
    for rank, box in enumerate(adder.reveal(part.part, told)):
        if rank != agreed.rank:
            header = _addressed(agreed, agreed.rank, rank)
            payload = seal_to(agreed.pair_keys[rank], header, box, random)
            out.append(Envelope.seal(identity, header, payload).to_bytes())
    kept = replace(part, commitments=tuple(told))
    return replace(agreed, scheme_secret=kept.to_bytes()), out


def finish(
    identity: Identity, agreed: Epoch, messages: list[bytes], adder: Any
) -> tuple[Epoch, bytes]:
    """Take the KEY-REVEALs for this member, in any order; return the epoch and the KEY-SHARED.

    Raises AuthenticationError: a signature or a box that does not verify; ProtocolError: a message
    missing, repeated, of another exchange or for another member; a public side that does not match
    its commitment.
    """
    if not agreed.scheme_public:
        part = _part(agreed)
        if not part.commitments:
            raise ProtocolError("nothing was revealed in this key agreement: start over")
        head = _addressed(agreed, 0, agreed.rank)
        found = broadcast.one_each(agreed, messages, head, MAX_BOX, without=agreed.rank)
        boxes = list(adder.reveal(part.part, part.commitments))
        for rank, envelope in found.items():
            boxes[rank] = open_from(agreed.pair_keys[rank], envelope.header, envelope.payload)
        secret, name = adder.finish(part.part, part.commitments, boxes)
        agreed = replace(agreed, scheme_public=name, scheme_secret=secret)
    name = broadcast.Digest(agreed.scheme_public).to_bytes()
    return agreed, broadcast.signed(identity, agreed, SHARED, name)


def _part(agreed: Epoch) -> _Part:
    """Return the part that was drawn in this agreement."""
    if agreed.scheme_public:
        raise ProtocolError("the key is known in this key agreement: start over")
    if not agreed.scheme_secret:
        raise ProtocolError("no part of a key was drawn in this key agreement: start over")
    return _Part.from_bytes(agreed.scheme_secret)


def _addressed(agreed: Epoch, sender: int, receiver: int) -> Header:
    """Return the header of a KEY-REVEAL."""
    header = broadcast.header_of(agreed, REVEAL, agreed.members[sender])
    return replace(header, receiver=agreed.members[receiver])

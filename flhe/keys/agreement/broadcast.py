"""Messages of one member to all about an epoch as a whole, between CONFIRM and its first round.

They are signed for the epoch's id and for the terms that it is for; where later messages have a layout,
these have the hash of their stage and the epoch.
"""

from __future__ import annotations

import hashlib

from flhe.keys.agreement.messages import Envelope, Header
from flhe.keys.agreement.states import Epoch
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX

Expect = dict[str, int | str | bytes]


def scope(kind: str, epoch_id: bytes) -> bytes:
    """What stands where later messages have a layout hash, 32 bytes."""
    return hashlib.sha256(dumps([PREFIX + kind, epoch_id])).digest()


def header(agreed: Epoch, kind: str, stage: str, sender: bytes) -> Header:
    """The header of a message of `stage`, one of the stages of `kind`."""
    return Header(
        roster_hash=agreed.roster.hash,
        run_id=agreed.run_id,
        epoch=agreed.number,
        stage=stage,
        sender=sender,
        policy_hash=agreed.contract,
        layout_hash=scope(kind, agreed.id),
    )


def box_header(agreed: Epoch, stage: str, rank: int, **more: bytes) -> dict[str, int | str | bytes]:
    """The header of a box that the member of a rank seals for all."""
    return {
        "run_id": agreed.run_id,
        "roster_hash": agreed.roster.hash,
        "stage": stage,
        "round": 0,
        "attempt": 0,
        "rank": rank,
        "epoch": agreed.id,
        **more,
    }


def expected(agreed: Epoch, kind: str, stage: str) -> Expect:
    """Every field that messages of a stage have in common."""
    return header(agreed, kind, stage, agreed.members[0]).expected()


def read(
    message: bytes,
    limit: int,
    kind: str,
    stage: str,
    sender: bytes,
    run_id: int,
    number: int,
    epoch_id: bytes,
    contract: bytes,
) -> bytes:
    """The payload of a message as a relay can verify it, which has no epoch.

    Raises ProtocolError, AuthenticationError: a message of another exchange, longer than `limit`
    bytes, or not by `sender`.
    """
    envelope = Envelope.from_bytes(message, limit)
    expect: Expect = {
        "stage": stage,
        "run_id": run_id,
        "epoch": number,
        "policy_hash": contract,
        "layout_hash": scope(kind, epoch_id),
    }
    envelope.verify(expect, senders=[sender])
    return envelope.payload

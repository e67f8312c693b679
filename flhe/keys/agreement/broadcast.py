"""Messages of members about an epoch as a whole, between CONFIRM and its first round.

They are signed for the epoch's id and contract. In place of a layout hash, they have the hash of
their stage and the epoch. `key_pair`, `joint` and `shared_key` define the steps that send them,
after `epoch.finish`. They are pure functions (identity, epoch, inbound) -> (epoch with the scheme's
keys so far, outbound). The layout hash of every slot includes the resulting keys' name, so
ciphertexts of members with different keys are never added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flhe.errors import ProtocolError
from flhe.keys.agreement.messages import MAX_MESSAGE, NONE, Envelope, Expected, Header
from flhe.keys.agreement.states import Advertised, Confirmed, Epoch, Shared
from flhe.keys.identity import Identity
from flhe.wire.derive import hash_of
from flhe.wire.fields import Hash
from flhe.wire.record import Form, Record

Group = Advertised | Shared | Confirmed | Epoch
Scope = tuple[int, int, bytes, bytes]
"""Data that all messages of an epoch are signed for: run id, number, epoch id and contract."""


@dataclass(frozen=True, slots=True)
class Digest(Record):
    """A payload that is 32 bytes: a commitment, or the name of a key."""

    FORM = Form("digest of a key", row=True)

    value: Hash


def layout(stage: str, epoch_id: bytes) -> bytes:
    """Return the value in place of a later message's layout hash, 32 bytes."""
    return hash_of(stage, epoch_id)


def header_of(group: Group, stage: str, sender: bytes) -> Header:
    """Return the header of a message to all, before or after the epoch exists."""
    return Header(
        # The hash is unknown under first-use.
        roster_hash=bytes(32) if group.roster is None else group.roster.hash,
        run_id=group.run_id,
        epoch=group.number,
        stage=stage,
        sender=sender,
        policy_hash=group.contract,
        layout_hash=layout(stage, group.id) if isinstance(group, Epoch) else NONE,
    )


def signed(identity: Identity, group: Group, stage: str, payload: bytes) -> bytes:
    """Return a signed message to all."""
    return Envelope.seal(identity, header_of(group, stage, identity.public), payload).to_bytes()


def one_each(
    group: Confirmed | Epoch,
    messages: Sequence[bytes],
    head: Header,
    limit: int = MAX_MESSAGE,
    without: int | None = None,
) -> dict[int, Envelope]:
    """Return one message of each member, by rank, except that of rank `without`.

    `head` is the header of one of them, `limit` the maximum length, bytes.

    Raises ProtocolError: a message missing, repeated or of another exchange; AuthenticationError: a
    signature that does not verify.
    """
    what, expect = head.stage.upper(), head.expected()
    need = len(group.members) - (without is not None)
    if len(messages) != need:
        raise ProtocolError(
            f"{len(messages)} {what} messages, all {need} members must send one: start over"
        )
    found: dict[int, Envelope] = {}
    for data in messages:
        envelope = Envelope.from_bytes(data, limit)
        envelope.verify(expect, senders=group.members)
        sender = envelope.header.sender
        rank = group.members.index(sender)
        if rank in found or rank == without:
            raise ProtocolError(f"two {what} messages by {group.roster.name(sender)}: start over")
        found[rank] = envelope
    return found


def read(message: bytes, limit: int, stage: str, sender: bytes, scope: Scope) -> bytes:
    """Return a message's payload after the checks that a relay can do without an epoch.

    Raises ProtocolError, AuthenticationError: a message of another exchange, longer than `limit`
    bytes, or not by `sender`.
    """
    run_id, number, epoch_id, contract = scope
    envelope = Envelope.from_bytes(message, limit)
    expect: Expected = {
        "stage": stage,
        "run_id": run_id,
        "epoch": number,
        "policy_hash": contract,
        "layout_hash": layout(stage, epoch_id),
    }
    envelope.verify(expect, senders=[sender])
    return envelope.payload


def announced(message: bytes, stage: str, sender: bytes, scope: Scope) -> bytes:
    """Return the 32 bytes of a JOINT-SUM, KEY-COMMIT or KEY-SHARED for a relay; raises as `read`."""
    return Digest.from_bytes(read(message, MAX_MESSAGE, stage, sender, scope)).value

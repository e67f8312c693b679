"""Receipts: each member signs which result it starts a round from.

    receipt = CBOR [history, missed, signature]     signed: an envelope of stage "receipt", its header
                                                    known, its payload CBOR [epoch id, history, missed]

A receipt travels with each update, and the receipts of a sum's senders with the sum. `history` is the
hash of all results so far, and `missed` the last round whose sum lacked this member's update, 0 before
the first. Whoever reads the sum finds the receipt of each sender in it, over the history that it has
itself. So a server that told two stories of a round is found out with the next sum in which both
come together: the member that heard the other one is named, and its signature is the proof. One that
keeps them apart for good looks to each side as if the others had left; what a node's audit log says of
each result is for administrators to compare.

Source: docs/protocol.md (Receipts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flhe.errors import EquivocationError, ProtocolError
from flhe.keys.agreement.messages import EVERYONE, NONE, Envelope, Header, Signature
from flhe.keys.agreement.states import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import MAX_MEMBERS
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.fields import U32, Hash
from flhe.wire.record import Form, Record

STAGE = "receipt"

MAX_RECEIPT = 128
"""Longest receipt, bytes."""


@dataclass(frozen=True, slots=True)
class Receipt(Record):
    """What a member has signed.

    Parameters
    ----------
    history : bytes
        Of the model that it starts from, 32 bytes.
    missed : int
        Last round whose sum lacked its update, 0 if none did.
    signature : bytes
        By the member, 64 bytes.
    """

    FORM = Form("receipt", MAX_RECEIPT, row=True)

    history: Hash
    missed: U32
    signature: Signature = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Receipts(Record):
    FORM = Form("receipts", MAX_MEMBERS * MAX_RECEIPT, row=True)

    receipts: tuple[bytes, ...]


def sign(identity: Identity, slot: Slot, number: int, policy_hash: bytes, missed: int = 0) -> bytes:
    """The receipt that goes with an update in `slot`; parameters as of `opened`."""
    header = header_of(identity.public, slot, number, policy_hash)
    payload = _payload(slot, slot.history, missed)
    signature = Envelope.seal(identity, header, payload).signature
    return Receipt(slot.history, missed, signature).to_bytes()


def opened(data: bytes, sender: bytes, slot: Slot, number: int, policy_hash: bytes) -> Receipt:
    """What the member with the public key `sender` has signed with its update.

    `number` is the epoch's, `policy_hash` that of the terms; the slot's layout and history are not
    looked at.

    Raises ProtocolError: it is none; AuthenticationError: it is another member's, of another attempt,
    or was changed.
    """
    receipt = Receipt.from_bytes(data)
    header = header_of(sender, slot, number, policy_hash)
    payload = _payload(slot, receipt.history, receipt.missed)
    Envelope(header, payload, receipt.signature).verify({}, senders=[sender])
    return receipt


def pack(receipts: Sequence[bytes]) -> bytes:
    """The receipts of a sum's senders, in order of rank, as they travel with it."""
    return _Receipts(tuple(receipts)).to_bytes()


def check(
    epoch: Epoch, slot: Slot, policy_hash: bytes, senders: Sequence[int], packed: bytes
) -> Mapping[int, Receipt]:
    """The receipts of a sum's senders, by rank, all of them for the reader's own history.

    `epoch` is the reader's, `slot` that of the sum, as the reader expects it; ranks of `senders`
    ascend, and `packed` is what came with the sum.

    Raises EquivocationError: a sender starts from another result, and is named; AuthenticationError: a
    receipt is another member's, of another attempt, or was changed; ProtocolError: there is not one
    for each sender.
    """
    receipts = _Receipts.from_bytes(packed).receipts if packed else ()
    if len(receipts) != len(senders):
        raise ProtocolError(
            f"the sum of round {slot.round} came without one receipt by each of its senders"
        )
    found: dict[int, Receipt] = {}
    for rank, data in zip(senders, receipts, strict=True):
        public = epoch.members[rank]
        receipt = opened(data, public, slot, epoch.number, policy_hash)
        if receipt.history != slot.history:
            raise EquivocationError(
                f"{epoch.roster.name(public)} has signed that round {slot.round} starts from the "
                f"result {receipt.history.hex()[:16]}, here it is {slot.history.hex()[:16]}: the "
                "server told two stories of a round before; compare with that site before this goes on"
            )
        found[rank] = receipt
    return found


def _payload(slot: Slot, history: bytes, missed: int) -> bytes:
    return dumps([slot.epoch, history, missed])


def header_of(
    sender: bytes,
    slot: Slot,
    number: int,
    policy_hash: bytes,
    stage: str = STAGE,
    layout_hash: bytes = NONE,
) -> Header:
    """What a member signs of a slot: its receipt, unless `stage` is another; `number` the epoch's."""
    return Header(
        roster_hash=slot.roster_hash,
        run_id=slot.run_id,
        epoch=number,
        round=slot.round,
        attempt=slot.attempt,
        stage=stage,
        sender=sender,
        receiver=EVERYONE,
        policy_hash=policy_hash,
        layout_hash=layout_hash,
    )

"""Stages after the update: members agree on whose seeds are added up (`keys.agreement.masking`).

    consist    a set of survivors, and their shares for this node   -> its signature, one a start
    unmask     t signatures on that set                             -> the sum of its shares
    void       a slot whose set was not opened                      -> a promise that it never will be

Where members hold shares of a key, CONSIST brings the sum, and UNMASK asks for a partial decryption.

The first two go by what the node keeps of its own upload, and by nothing that the server says of it. A
node signs one set of the updates that start from one history: on disk before the signature leaves, and
from then on it encrypts nothing more from there, in whatever round and epoch. It is free again once t
members have promised that the set is never opened. What it answered it answers again, for the same set
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError, SharesError
from flhe.keys.agreement import masking, voids
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roles import partial_of, spends_of
from flhe.mods import agreement, records
from flhe.mods.stages import App, Stopwatch, reply
from flhe.node.folder import log_failure
from flhe.node.node import Node
from flhe.schemes.base import FREE, Sealer, SharedSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.sums.secure_sum import SecureSum
from flhe.training.session import Session
from flhe.training.terms import Terms

Fields = Mapping[str, object]
"""What goes into a reply beside the ciphertext."""


def check_ready(node: Node, session: Session, of: SecureSum) -> None:
    """Refuse to train for an attempt in which nothing may be encrypted.

    Raises ReuseError: survivors of the round or of its start were signed, or its sum was given up;
    NoKeyError: the epoch's key has opened as much as it may.
    """
    slot = of.slot
    if session.terms.scheme.opened_together:
        node.check_unspent(slot.epoch, spends_of(of.adder, of.length))
        node.check_unsigned(slot)
        node.check_unclaimed(slot.epoch, slot.round, slot.attempt)


def deal(node: Node, session: Session, sealer: Sealer, slot: Slot) -> Fields:
    """Share the seed of what was just encrypted; {} where its senders do not open the sum."""
    if not session.terms.scheme.opened_together:
        return {}
    if session.terms.scheme.per_sum_keys:
        assert isinstance(sealer, SharedSealer)
        dealt = masking.deal(session.epoch, slot, sealer.take_seed(slot))
    else:
        dealt = masking.Dealt(slot, (), b"")  # of the key, every member has a share already
    node.save_dealt(dealt)
    return {"shares": list(dealt.boxes)}


def dealt(node: Node, session: Session, slot: Slot) -> Fields:
    """The shares of an update that is sent again; {} as above."""
    if not session.terms.scheme.opened_together:
        return {}
    kept = node.load_dealt()
    if kept is None or kept.slot != slot:
        raise ProtocolError("the shares of this attempt are not kept any more: ask under a new one")
    return {"shares": list(kept.boxes)}


def consist(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Sign the set of survivors that the server proposes."""
    with (watch := Stopwatch()):
        epoch, terms = _epoch(node, record, app)
        proposed = ranks_in(record, "survivors")
        node.policy.check_survivors(len(proposed))
        kept = node.load_dealt()
        if kept is None or not _is_of(kept.slot, epoch, record):
            raise ProtocolError(
                "nothing was encrypted here for this attempt: ask for the round first"
            )
        spends = FREE
        try:
            if terms.scheme.per_sum_keys:
                boxes = records.bytes_list(record, "shares")
                elements = terms.scheme.elements(epoch.size)
                agreed, signature = masking.agree(
                    epoch, node.identity, kept, proposed, boxes, elements
                )
            else:
                total = _sum_in(message, record)
                sent = node.load_output(kept.slot)
                if (
                    sent is None
                    or total.length != sent[0].length
                    or list(total.senders) != proposed
                ):
                    raise ProtocolError("the sum to be opened is not that of these survivors")
                adder = terms.for_cohort(epoch.size, epoch.scheme_public)
                spends = spends_of(adder, total.length)
                agreed, signature = masking.agree_on_sum(
                    epoch, node.identity, kept.slot, total, partial(partial_of, adder, epoch)
                )
        except SharesError as error:
            # Whose they are is no secret: the server must know whom to leave out.
            log_failure(node.store, "consist", error)
            return reply(step="consist", bad=list(error.ranks))
        scope = voids.Void.of(agreed.circle(epoch), kept.slot).scope
        digest = set_digest(epoch, agreed)
        node.claim_set(kept.slot, digest, scope, lambda: node.save_survivors(agreed), spends)
    return reply(watch, step="consist", signature=signature)


def unmask(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """Release the sum of the shares that this node has of the survivors' seeds."""
    with (watch := Stopwatch()):
        epoch, terms = _epoch(node, record, app)
        agreed = node.load_survivors()
        if agreed is None or not _is_of(agreed.slot, epoch, record):
            raise ProtocolError("this node has signed no survivors in this attempt")
        if node.signed(agreed.slot) != set_digest(epoch, agreed):
            raise ProtocolError("the survivors that are kept here were not signed, or given up")
        answer = masking.release(
            epoch,
            node.identity,
            agreed,
            ranks_in(record, "signers"),
            records.bytes_list(record, "signatures"),
            terms.scheme.elements(epoch.size),
            sealed=terms.scheme.reader == "clients",
        )
        node.answer_set(agreed.slot)
    return reply(watch, step="unmask", answer=answer)


def void(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """Promise to sign and answer for no set of a slot, unless this node has answered for one."""
    with (watch := Stopwatch()):
        _epoch(node, record, app)
        slot = Slot.from_bytes(records.field(record, "slot", bytes))
        number = records.field(record, "number", int)
        signed = node.give_up_set(slot)
        made = voids.promise(node.identity, slot, number, signed=signed)
    return reply(watch, step="void", promise=made.to_bytes())


def learn_voids(node: Node, record: ConfigRecord, history: bytes) -> None:
    """Hear of sets that can never be opened: where this node signed one, it may sign another."""
    for encoded in records.bytes_list(record, "voids"):
        node.forget_set(history, voids.Void.from_bytes(encoded))


def _epoch(node: Node, record: ConfigRecord, app: App) -> tuple[Epoch, Terms]:
    """The node's own epoch and terms, where they have such stages."""
    agreed, contract = agreement.current(node, record, app)
    terms = contract.terms
    if not terms.scheme.opened_together:
        raise ProtocolError("a stage that this scheme does not have")
    return agreed, terms


def set_digest(epoch: Epoch, agreed: masking.Agreed) -> bytes:
    """What a claim keeps of a set of survivors."""
    return agreed.circle(epoch).about(agreed.survivors)


def _sum_in(message: Message, record: ConfigRecord) -> Sealed:
    """The sum that a message shows; ProtocolError where it shows none."""
    arrays = message.content.get(records.UPDATE)
    if not isinstance(arrays, ArrayRecord):
        raise ProtocolError("the sum to be opened is missing")
    return records.to_sealed(records.field(record, "sum", bytes), arrays, take=True, floats=0)


def ranks_in(record: ConfigRecord, name: str) -> list[int]:
    """A field that is a list of ranks; missing means empty. ProtocolError for anything else."""
    ranks = record.get(name, [])
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        raise ProtocolError(f"field {name!r} of a stage must be a list of ranks")
    return [rank for rank in ranks if isinstance(rank, int)]


def _is_of(slot: Slot, epoch: Epoch, record: ConfigRecord) -> bool:
    """Whether a slot is the one of the attempt that a message is about."""
    asked = records.field(record, "round", int), records.field(record, "attempt", int)
    return (slot.epoch, slot.round, slot.attempt) == (epoch.id, *asked)

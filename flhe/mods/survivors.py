"""Stages after the update: members agree on the survivors (`keys.agreement.masking`).

    consist    a set of survivors, and their shares for this node   -> its signature, one a start
    unmask     t signatures on that set                             -> the sum of its shares
    void       a slot whose set was not opened                      -> a promise never to open it

If members hold shares of a key, CONSIST brings the sum, and UNMASK asks for a partial decryption.

The first two rely on the node's record of its own upload, never on the server's account. A node
signs one set of the updates that start from one history, on disk before the signature leaves. It
then encrypts nothing more from there, in any round and epoch. It is free again once so many members
have promised that the set is never opened (`voids`). For the same set it repeats its answer.
"""

from __future__ import annotations

from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flhe.errors import DriftError, ProtocolError, SharesError
from flhe.keys.agreement import masking, voids
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roles import partial_of, spends_of
from flhe.mods import agreement, records
from flhe.mods.app import App
from flhe.node.audit import log_failure
from flhe.node.journal import FROM_A_MODEL
from flhe.node.node import Node
from flhe.schemes.base import FREE, Sealer
from flhe.schemes.sealed import Slot
from flhe.sums.secure_sum import SecureSum
from flhe.training.contract import Contract
from flhe.training.session import Session


def check_ready(node: Node, of: SecureSum) -> None:
    """Refuse to train for a sum that may not be encrypted.

    Raises ReuseError: survivors of the round or of its start were signed, or its sum was given up;
    NoKeyError: the epoch's key has reached its limit.
    """
    node.check_unsigned(of.slot, spends_of(of.adder, of.length))


def deal(node: Node, session: Session, sealer: Sealer, slot: Slot) -> None:
    """Share the seed of the last encryption; see `shares`."""
    dealt = masking.Dealt(slot, (), b"")  # members already share a lasting key
    if session.terms.scheme.per_sum_keys:
        dealt = masking.deal(session.epoch, slot, sealer.take_seed(slot))
    node.save_dealt(dealt)


def shares(node: Node, slot: Slot) -> list[bytes]:
    """Return the shares of an update's seed, one for each member."""
    kept = node.load_dealt()
    if kept is None or kept.slot != slot:
        raise ProtocolError("the shares of this attempt are no longer kept: ask under a new one")
    return list(kept.boxes)


def consist(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Sign the set of survivors that the server proposes."""
    epoch, contract = _epoch(node, record, app)
    scheme, proposed = contract.terms.scheme, records.list_of(record, "survivors", int)
    kept = node.load_dealt()
    if kept is None or not _is_of(kept.slot, epoch, record):
        raise ProtocolError("nothing was encrypted here for this attempt: ask for the round first")
    node.policy.check_survivors(len(proposed), contract)
    if scheme.reader == "clients" and kept.slot.purpose in FROM_A_MODEL:
        # It may have taken another first model since, which has a set of its own.
        model = node.load_model()
        if model is None or model.history != kept.slot.history:
            raise DriftError("the updates are to another model than this node's")
    spends = FREE
    try:
        if scheme.per_sum_keys:
            told = proposed, records.bytes_list(record, "shares"), scheme.elements(epoch.size)
            agreed, signature = masking.agree(epoch, node.identity, kept, *told)
        else:
            shown, header = message.content.get(records.UPDATE), records.field(record, "sum", bytes)
            if not isinstance(shown, ArrayRecord):
                raise ProtocolError("the sum to be opened is missing")
            total = records.to_sealed(header, shown, take=True, floats=0)
            sent = node.load_output(kept.slot)
            if sent is None or (total.length, list(total.senders)) != (sent[0].length, proposed):
                raise ProtocolError("the sum to be opened is not that of these survivors")
            adder = contract.terms.for_cohort(epoch.size, epoch.scheme_public)
            spends = spends_of(adder, total.length)
            decrypt = partial(partial_of, adder, epoch)
            agreed, signature = masking.agree_on_sum(
                epoch, node.identity, kept.slot, total, decrypt
            )
    except SharesError as error:
        # The senders are no secret: the server must know whom to leave out.
        log_failure(node.store, "consist", error)
        return records.reply(step="consist", bad=list(error.ranks))
    circle = agreed.circle(epoch)
    digest, scope = circle.about(agreed.survivors), voids.Void.of(circle, kept.slot).scope
    node.claim_set(agreed, digest, scope, spends)
    return records.reply(step="consist", signature=signature)


def unmask(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """Release the sum of this node's shares of the survivors' seeds."""
    epoch, contract = _epoch(node, record, app)
    agreed = node.load_survivors()
    if agreed is None or not _is_of(agreed.slot, epoch, record):
        raise ProtocolError("this node has signed no survivors in this attempt")
    if node.journal(epoch.id).signed_in(agreed.slot) != agreed.circle(epoch).about(
        agreed.survivors
    ):
        raise ProtocolError("the kept survivors were not signed, or given up")
    answer = masking.release(
        epoch,
        node.identity,
        agreed,
        records.list_of(record, "signers", int),
        records.bytes_list(record, "signatures"),
        sealed=contract.terms.scheme.reader == "clients",
    )
    node.book.enter(lambda now: now.with_answer(agreed.slot))
    return records.reply(step="unmask", answer=answer)


def void(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """Promise to sign and answer for no set of a slot, unless this node has answered for one."""
    _epoch(node, record, app)
    slot = Slot.from_bytes(records.field(record, "slot", bytes))
    number = records.field(record, "number", int)
    made = voids.promise(node.identity, slot, number, signed=node.give_up_set(slot))
    return records.reply(step="void", promise=made.to_bytes())


def _epoch(node: Node, record: ConfigRecord, app: App) -> tuple[Epoch, Contract]:
    """Return the node's own epoch and contract, if they have such stages."""
    agreed, contract = agreement.current(node, record, app)
    if not contract.terms.scheme.opened_together:
        raise ProtocolError("this scheme has no such stage")
    return agreed, contract


def _is_of(slot: Slot, epoch: Epoch, record: ConfigRecord) -> bool:
    """Return whether a slot belongs to the message's attempt."""
    asked = records.field(record, "round", int), records.field(record, "attempt", int)
    return (slot.epoch, slot.round, slot.attempt) == (epoch.id, *asked)

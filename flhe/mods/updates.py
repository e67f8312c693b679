"""An encrypted update on its way out: signed, and in a reply."""

from __future__ import annotations

from flwr.app import RecordDict

from flhe.keys.agreement.messages import EVERYONE, Header, sign_detached
from flhe.mods import records, survivors
from flhe.mods.follow import Follower
from flhe.node.node import Node
from flhe.schemes.base import Sealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.sums import receipts
from flhe.training.session import Session


def sign(node: Node, session: Session, sealed: Sealed, stage: str = "update") -> bytes:
    """The detached envelope of a ciphertext."""
    header = Header(
        roster_hash=session.epoch.roster.hash,
        run_id=node.run_id,
        epoch=session.epoch.number,
        round=sealed.slot.round,
        attempt=sealed.slot.attempt,
        stage=stage,
        sender=node.identity.public,
        receiver=EVERYONE,
        policy_hash=session.terms.hash(),
        layout_hash=sealed.slot.layout_hash,
    )
    return sign_detached(node.identity, header, sealed.digest())


def deliver(
    follower: Follower,
    session: Session,
    sealer: Sealer,
    sealed: Sealed,
    digest: bytes,
    app_inputs_hash: bytes,
) -> RecordDict:
    """Sign and keep what was just encrypted; the last reply of its round.

    `digest` is of the model that it starts from, `app_inputs_hash` the hash of what its app was told.
    """
    node = follower.node
    with follower.watch:
        beside = survivors.deal(node, session, sealer, sealed.slot)
        envelope = sign(node, session, sealed)
        node.save_output(sealed, envelope)
    return _reply(follower, sealed, envelope, digest, app_inputs_hash, beside, resent=False)


def kept(
    follower: Follower, session: Session, slot: Slot, digest: bytes, app_inputs_hash: bytes
) -> RecordDict | None:
    """The reply of an attempt that was delivered before, once more; None where none was."""
    output = follower.node.load_output(slot)
    if output is None:
        return None
    beside = survivors.dealt(follower.node, session, slot)
    return _reply(follower, *output, digest, app_inputs_hash, beside, resent=True)


def _reply(
    follower: Follower,
    sealed: Sealed,
    envelope: bytes,
    digest: bytes,
    app_inputs_hash: bytes,
    beside: survivors.Fields,
    *,
    resent: bool,
) -> RecordDict:
    """The ciphertext, a receipt, and what the server needs to add it.

    A support was told before, and does not travel again. `beside` is what the agreement on masking
    keys needs of the ciphertext's seed, where there is one.
    """
    content = follower.reply(
        step="update",
        resent=resent,
        header=sealed.header(),
        envelope=envelope,
        digest=digest,
        app_inputs_hash=app_inputs_hash,
        history=sealed.slot.history,
        receipt=_receipt(sealed, follower),
        **beside,
    )
    content[records.UPDATE] = records.from_sealed(sealed, supports=False)
    return content


def _receipt(sealed: Sealed, follower: Follower) -> bytes:
    """What this node signs of the result that its update starts from."""
    node, epoch = follower.node, follower.epoch
    terms = follower.terms.resolved(epoch.size)
    slot, policy = sealed.slot, terms.hash()
    return receipts.sign(node.identity, slot, epoch.number, policy, node.missed())

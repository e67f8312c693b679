"""An encrypted update on its way out: signed, and in a reply."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import RecordDict

from flhe.keys.agreement.messages import EVERYONE, Header, sign_detached
from flhe.mods import records
from flhe.mods.follow import Follower
from flhe.mods.stages import reply
from flhe.node.node import Node
from flhe.schemes.sealed import Sealed
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


def update_reply(
    sealed: Sealed,
    envelope: bytes,
    digest: bytes,
    told: bytes,
    follower: Follower,
    *,
    resent: bool = False,
    beside: Mapping[str, object] | None = None,
) -> RecordDict:
    """The last reply of a round: the ciphertext, a receipt, and what the server needs to add it.

    A support was told before, and does not travel again. `beside` is what the agreement on
    masking keys needs of the ciphertext's seed, where there is one.
    """
    content = reply(
        step="update",
        resent=resent,
        header=sealed.header(),
        envelope=envelope,
        digest=digest,
        told=told,
        history=sealed.slot.history,
        receipt=_receipt(sealed, follower),
        **(beside or {}),
        **{"crypto-s": follower.watch.seconds},
    )
    content.update(follower.told)
    content[records.UPDATE] = records.from_sealed(sealed, supports=False)
    return content


def _receipt(sealed: Sealed, follower: Follower) -> bytes:
    """What this node signs of the result that its update starts from."""
    node, epoch = follower.node, follower.epoch
    terms = follower.terms.resolved(epoch.size)
    slot, policy = sealed.slot, terms.hash()
    return receipts.sign(node.identity, slot, epoch.number, policy, node.missed())

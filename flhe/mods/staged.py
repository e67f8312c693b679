"""Rounds of more than one stage: mean squares, supports, then the update.

    round      train, keep the draft             -> encrypted mean squares, or the support
    supports   the sum of mean squares           -> the support
    update     the masking mode that was chosen  -> ciphertext

The app is called in the first of them only. What a node tells in one attempt it tells once: each step is
claimed on disk first, with the support and the mode that it was told with, and a stage that is asked for
again gets the same bytes. A node goes by its own model and draft: which steps a round has is no choice
of the server's.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Message, RecordDict

from flhe import records
from flhe.errors import ProtocolError, ReuseError
from flhe.mods.follow import Follower, follow
from flhe.mods.node import Node
from flhe.mods.stages import App, Stopwatch, reply
from flhe.mods.updates import RANGES_MODE, sign, update_reply
from flhe.rounds.draft import Draft
from flhe.rounds.model import Model
from flhe.rounds.session import Session, check_ahead
from flhe.sealed import Sealed, from_bytes, to_bytes

Trained = Callable[[], Draft]
"""Lets the app train and gives back what it changed."""


def begin(
    node: Node, record: ConfigRecord, follower: Follower, make: Callable[[bytes], Draft]
) -> RecordDict:
    """First stage of a round: train, unless that was done for an attempt before, and tell what is first.

    `make` lets the app train from the model whose digest it is given.
    """
    session, model = follower.session()
    round_ = records.field(record, "round", int)
    attempt = records.field(record, "attempt", int)
    first = session.slot(model, round_, attempt)
    digest = node.claimed(first) or session.digest(model)
    draft = node.load_draft()
    if draft is None or (draft.round, draft.history) != (round_, model.history):
        # Another round's from the same model came to nothing: this one is trained in its place.
        draft = make(digest)
        with follower.watch:
            node.save_draft(draft)
    ranges = _ranges(record)
    with follower.watch:
        if session.needs_ranges(model) and ranges is None:
            return _tell_ranges(node, session, model, draft, digest, follower, round_, attempt)
        if session.terms.sparse:
            return _tell_support(node, session, model, draft, digest, ranges, follower, attempt)
        return _tell_update(node, record, session, model, draft, digest, ranges, follower)


def supports(node: Node, record: ConfigRecord, message: Message, _app: App) -> RecordDict:
    """Second stage where mean squares came first: say which coordinates the update has."""
    follower, session, model, draft, digest = _resume(node, record, message)
    with follower.watch:
        attempt = records.field(record, "attempt", int)
        ranges = _ranges(record)
        return _tell_support(node, session, model, draft, digest, ranges, follower, attempt)


def update(node: Node, record: ConfigRecord, message: Message, _app: App) -> RecordDict:
    """Last stage: encrypt, in the mode that was chosen for all."""
    follower, session, model, draft, digest = _resume(node, record, message)
    with follower.watch:
        return _tell_update(node, record, session, model, draft, digest, _ranges(record), follower)


def _resume(
    node: Node, record: ConfigRecord, message: Message
) -> tuple[Follower, Session, Model, Draft, bytes]:
    """What an earlier stage of the same attempt left."""
    follower = follow(node, record, message, Stopwatch())
    session, model = follower.session()
    round_ = records.field(record, "round", int)
    check_ahead(model, round_)
    if not session.staged(model):
        raise ProtocolError("a stage that this round does not have")
    slot = session.slot(model, round_, records.field(record, "attempt", int))
    digest = node.claimed(slot)
    draft = node.load_draft()
    if digest is None or draft is None or (draft.round, draft.history) != (round_, model.history):
        raise ProtocolError("nothing was trained here for this attempt: ask for the round first")
    return follower, session, model, draft, digest


def _tell_ranges(
    node: Node,
    session: Session,
    model: Model,
    draft: Draft,
    digest: bytes,
    follower: Follower,
    round_: int,
    attempt: int,
) -> RecordDict:
    slot = session.ranges_slot(model, round_, attempt)
    if cached := node.load_output(slot, "ranges"):
        return _ranges_reply(*cached, digest, follower)
    encoded = session.encode_ranges(model, draft, digest)
    sealed = session.seal(
        session.sealer(),
        encoded,
        slot,
        lambda r, a: node.claim(session, r, a, digest, step="ranges"),
        RANGES_MODE if session.terms.masking == "adaptive" else "",
    )
    envelope = sign(node, session, sealed, "ranges")
    node.save_output(sealed, envelope, "ranges")
    return _ranges_reply(sealed, envelope, digest, follower)


def _ranges_reply(sealed: Sealed, envelope: bytes, digest: bytes, follower: Follower) -> RecordDict:
    content = reply(
        step="ranges",
        sealed=to_bytes(sealed),
        envelope=envelope,
        digest=digest,
        **{"crypto-s": follower.watch.seconds},
    )
    content.update(follower.told)
    return content


def _tell_support(
    node: Node,
    session: Session,
    model: Model,
    draft: Draft,
    digest: bytes,
    ranges: Sealed | None,
    follower: Follower,
    attempt: int,
) -> RecordDict:
    if not session.terms.sparse:
        raise ProtocolError("asked for a support, and updates are dense")
    follower.fit(session, model, draft.round, ranges, digest)  # opens and checks them, before anything is told
    slot = session.slot(model, draft.round, attempt, ranges)
    support = session.support(draft, slot)
    told = node.told_support(slot)
    if told is None:
        node.claim(session, slot.round, attempt, digest, step="supports", support=support.digest())
    elif told != support.digest():
        raise ReuseError("another support was told in this attempt: ask under a new one")
    content = reply(
        step="supports",
        support=support.data,
        digest=digest,
        **{"crypto-s": follower.watch.seconds},
    )
    content.update(follower.told)
    return content


def _tell_update(
    node: Node,
    record: ConfigRecord,
    session: Session,
    model: Model,
    draft: Draft,
    digest: bytes,
    ranges: Sealed | None,
    follower: Follower,
) -> RecordDict:
    attempt = records.field(record, "attempt", int)
    slot = session.slot(model, draft.round, attempt, ranges)
    if cached := node.load_output(slot):
        return update_reply(*cached, digest, follower, resent=True)
    mode = records.optional(record, "mode", "")
    state = follower.fit(session, model, draft.round, ranges, digest)
    encoded, support = session.encode_draft(draft, state, slot, digest)
    told = b"" if support is None else support.digest()
    if support is not None and node.told_support(slot) != told:
        raise ReuseError("another support was told in this attempt: ask under a new one")
    session.scheme.check_mode(mode)
    sealed = session.seal(
        session.sealer(),
        encoded,
        slot,
        lambda r, a: node.claim(session, r, a, digest, support=told, mode=mode),
        mode,
        support,
    )
    envelope = sign(node, session, sealed)
    node.save_output(sealed, envelope)
    return update_reply(sealed, envelope, digest, follower)


def _ranges(record: ConfigRecord) -> Sealed | None:
    """The sum of mean squares of the round under way, where the message brings one."""
    encoded = records.optional(record, "fitted-on", b"")
    return from_bytes(encoded) if encoded else None

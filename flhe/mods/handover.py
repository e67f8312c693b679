"""Stages by which a model reaches whoever lacks it; training and evaluation are not among them."""

from __future__ import annotations

import secrets

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey
from flhe.mods import records
from flhe.mods.app import App
from flhe.mods.follow import Follower, follow
from flhe.node.node import Node
from flhe.training.model import Model
from flhe.wire import canonical


def status(node: Node, _record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Say who this is and how far it has come; all of it is public."""
    model = node.load_model()
    return records.reply(
        member=node.identity.public,
        epoch=node.usable_epoch() or b"",
        round=-1 if model is None else model.round,
        history=b"" if model is None else model.history,
    )


def sync(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Catch up, and say where that led: round, history, and a keyed digest of the model."""
    follower = follow(node, record, message, app)
    if follower.model is None:
        return follower.reply(round=-1)
    session, model = follower.session()
    digest = session.digest(model)
    return follower.reply(round=model.round, history=model.history, digest=digest)


def initial(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Make the model that the federation starts from, and seal it for the others."""
    follower = follow(node, record, message, app)
    if follower.model is None:
        arrays = records.to_numpy(app.initial())
        follower.model = Model.secret_initial(arrays, secrets.token_bytes(32))
        node.save_model(follower.model)
    elif follower.model.round != 0:
        raise ProtocolError("asked for an initial model in the middle of a federation")
    return _sealed(follower)


def verify(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Vouch for another member's checkpoint if it holds this node's own model; keep nothing of it."""
    follower = follow(node, record, message, app)
    box = message.content.get(records.CANDIDATE)
    if not isinstance(box, ArrayRecord):
        raise ProtocolError("there is no checkpoint to verify")
    session, model = follower.session()
    other, _ = follower.unseal(records.to_pieces(box))
    digest = session.digest(model)
    same = other.layout == model.layout and session.digest(other) == digest
    voucher = session.holding(model, digest).sign(node.identity) if same else b""
    return follower.reply(voucher=voucher)


def checkpoint(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Seal the model for the group, so that the server can keep what it cannot read."""
    return _sealed(follow(node, record, message, app))


def _sealed(follower: Follower) -> RecordDict:
    session, model = follower.session()
    digest = session.digest(model)
    content = follower.reply(
        round=model.round,
        history=model.history,
        digest=digest,
        voucher=session.holding(model, digest).sign(follower.node.identity),
        layout=canonical.dumps(model.layout.to_fields()),
    )
    content[records.BOX] = sealed_box(session.epoch, model)
    return content


def sealed_box(agreed: Epoch, model: Model) -> ArrayRecord:
    """A model that members of an epoch open, and those whom they give its key."""
    box = seal.seal(ModelKey.of(agreed), model.round, agreed.rank, model.chunks())
    return records.from_pieces(box)

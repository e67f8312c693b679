"""Follow the federation: a node updates its model from a message.

In order, if present: the confirmations that begin an epoch, a sealed checkpoint or the plain
initial model, the sums of the rounds since. A node never returns to an earlier round.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from itertools import zip_longest

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flhe.coding.extras import Totals
from flhe.errors import (
    AlteredError,
    DriftError,
    EquivocationError,
    FlheError,
    ProtocolError,
    logger,
)
from flhe.keys import seal
from flhe.keys.agreement.answers import unpack
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey
from flhe.mods import agreement, records
from flhe.mods.app import App
from flhe.node.audit import log_failure
from flhe.node.journal import CONSIST
from flhe.node.node import Node
from flhe.schemes.sealed import from_bytes
from flhe.training import chain
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.session import Session
from flhe.training.update import finite, served
from flhe.wire import canonical


@dataclass(slots=True)
class Follower:
    """A node catching up with the others; `disclosed` holds permitted means of opened sums."""

    node: Node
    app: App
    epoch: Epoch
    contract: Contract
    model: Model | None = None
    disclosed: RecordDict = field(default_factory=RecordDict)
    changed: bool = False
    missed: bool = False

    def session(self) -> tuple[Session, Model]:
        """The session and its model; DriftError without a model."""
        if self.model is None:
            raise DriftError("this node has no model and was sent none")
        contract = self.contract
        session = Session(self.epoch, contract.terms, self.model.layout, contract.least)
        return session, self.model

    def reply(self, **fields: object) -> RecordDict:
        """Return a reply with the permitted means of sums."""
        content = records.reply(**fields)
        content.update(self.disclosed)
        return content

    def unseal(self, box: list[bytes]) -> tuple[Model, int]:
        """Return the model in a sealed checkpoint of this epoch, and its sealer's claimed rank."""
        head, plain = seal.unsealed(ModelKey.of(self.epoch), box)
        model = Model.from_bytes(plain)
        if model.round != head.round:
            raise ProtocolError("the checkpoint holds another round than its header says")
        chain.check(model.chain, model.history, model.round)
        mask, select = model.mask, self.contract.terms.select
        if not model.round and (model.chain or model.moments or model.memory or mask is not None):
            raise ProtocolError("a first model must hold no result of a sum")
        if mask is not None and not (select.mapped and mask.count == select.count(model.layout)):
            raise ProtocolError("the checkpoint's selection is not one of these terms")
        if model.moments and tuple(model.moments) != self.contract.terms.optimizer.moments:
            raise ProtocolError("the checkpoint is of another optimizer")
        return model, head.rank

    def adopt(self, box: list[bytes], vouchers: list[bytes]) -> None:
        """Take the model of a sealed checkpoint, unless the own one is further on.

        Raises EquivocationError: its chain of sums differs from the own model's; ProtocolError: it
        has too few vouchers, or belongs to another model; AuthenticationError: a voucher is forged.
        """
        model, sealer = self.unseal(box)
        if model.round:
            self.contract.check_round(model.round)
        own, epoch = self.model, self.epoch
        reached = -1 if own is None else own.round
        session = Session(epoch, self.contract.terms, model.layout)
        digest = session.digest(model)
        same = own is not None and model.round == reached and session.digest(own) == digest
        if same or model.round < reached:
            return
        # Only its maker has a first model; a checkpoint takes it to the others.
        need = epoch.roster.collusion + 1 if model.round else 1
        session.holding(model, digest).check_all(vouchers, sealer, need)
        self.check_first(model)
        # A first model may come from the server alone: a model with vouchers takes precedence.
        if own is not None and own.round > 0:
            if model.layout != own.layout:
                raise ProtocolError("the checkpoint holds another model than this federation's")
            self._check_follows(own, model, epoch.roster.name(epoch.members[sealer]))
        if model.round == reached:
            logger.warning(
                "round %d: this node's model differed from the others', it takes theirs", reached
            )
        self.node.check_mask(model.mask)
        self.node.skip_openings(model.round)
        counted = chain.last_with(model.chain, epoch.members[epoch.rank])
        self.app.state.settle(model.round, counted)
        self.node.skip_draft(model, counted * (counted > reached), epoch.contract)
        self._say_missing(max(reached, 0), model, self.node.last_sent())
        self.model, self.changed = model, True

    def check_first(self, model: Model) -> None:
        """Refuse a first model once updates to another one were signed; EquivocationError.

        Sums from two first models would differ by single updates, and one member could make the
        second one.
        """
        if not model.round and self.node.journal(self.epoch.id).signed_beside(model.history):
            raise EquivocationError(
                "another first model, and a sum from the one before may have been opened: begin "
                "another federation, or wait for a checkpoint with a sum in it"
            )

    @staticmethod
    def _check_follows(own: Model, model: Model, sealer: str) -> None:
        """Refuse a checkpoint whose sums differ from those in the own model; EquivocationError."""
        if own.history in (model.history, *(link.before for link in model.chain)):
            return
        mine, theirs = (chain.results(m.chain, m.history) for m in (own, model))
        known = (r for r in sorted(mine) if r >= min(theirs) and theirs.get(r) != mine[r])
        round_ = next(known, own.round)
        here, there = mine.get(round_, own.history), theirs.get(round_, b"")
        raise EquivocationError(
            f"round {round_}: the result here is {here.hex()[:16]}, in the checkpoint by {sealer} "
            f"it is {there.hex()[:16] or 'none'}: the sites received two results. Compare flhe "
            "log with the other sites'; to take theirs, move runs/<id>/model in this state "
            "directory away"
        )

    def _say_missing(self, after: int, model: Model, sent: int) -> None:
        """Warn if a checkpoint's sums lack updates that this node sent, or may have sent."""
        own = self.epoch.members[self.epoch.rank]
        if gone := chain.without(model.chain, own, after, sent):
            self.missed = True
            rounds = f"rounds {gone[0]} to {gone[-1]}" if gone[1:] else f"round {gone[0]}"
            logger.warning("%s: this node's update is not in the sums", rounds)

    def open(
        self,
        header: bytes,
        arrays: ArrayRecord,
        mean_squares: bytes,
        release: bytes,
        expected: object,
    ) -> None:
        """Open one round's sum, unless it was opened before.

        `mean_squares` is the sum for fitted thresholds, `release` the unmasking material of the
        senders' agreement; b"" for none. A wrong one opens nothing: the encryption's slot binds it.
        `expected` is the history with this sum in it, or None.

        Raises AlteredError: not the sum that the message names.
        """
        session, model = self.session()
        node = self.node
        floats = session.layout.floats if self.contract.terms.codec.sparse else 0
        total = records.to_sealed(header, arrays, take=True, floats=floats)
        self.app.give_back(total.data.nbytes)
        round_ = total.slot.round
        if round_ <= model.round:
            return  # the server had not received it
        fitted_on = from_bytes(mean_squares) if mean_squares else None
        digest = session.digest(model)
        journal = node.journal(self.epoch.id)
        self.contract.check_due(model.round, round_, journal.last_reached())
        session.check(model, total, fitted_on, digest)
        for opened in (total, fitted_on):
            if opened is not None:
                node.policy.check_survivors(len(opened.senders), self.contract)
        # Not recorded as the sum of its round: that would separate this node from the others. If a
        # scheme rounds, a sum damaged in transit may even open to the same values.
        if expected is not None:
            link = chain.link_of(model.history, total, total.digest(), self.epoch.members)
            if link.history != expected:
                raise AlteredError(
                    f"the sum of round {round_} is not the one that the message names"
                )
        sent = self.epoch.rank in total.senders
        lost = journal.mark[0] == round_ and not sent
        # By the digest of the current model: the one of a claim may have been given up.
        known = digest, fitted_on, unpack(release)
        self.model, totals = session.open(model, total, node.record_opening, *known)
        node.settle_draft(round_, sent=sent, contract=self.epoch.contract)
        self.app.state.settle(round_, round_ if sent else 0)
        self.changed = True
        self.missed |= lost
        if lost:
            logger.warning(
                "round %d: this node's update is not in the sum, it trains again", round_
            )
        self.disclosed["flhe.opened"] = ConfigRecord({"round": round_, "missed": self.missed})
        self._tell(f"{records.MEANS}{round_}", totals)

    def _tell(self, name: str, totals: Totals) -> None:
        """Add the means of a sum to the reply, if this node reports them."""
        if self.epoch.rank != 0:  # one reporter, so only one view of a round is disclosed
            return
        means = finite(totals.metrics).items()
        # Three digits: masks are malleable, and a shifted sum must not reveal the exact weight.
        rounded = {n: float(f"{v:.3g}") for n, v in means if self.node.policy.allows_metric(n)}
        self.disclosed[name] = MetricRecord(rounded)  # type: ignore[arg-type]

    def open_evaluation(self, record: ConfigRecord) -> None:
        """Open the evaluations of the current model, and report their means.

        Only the reporter receives the sum. A failure to open it does not stop training.
        """
        names = "evaluation", "opens-evaluation"
        encoded, release = (records.optional(record, name, b"") for name in names)
        if not encoded or self.model is None:
            return
        session, model = self.session()
        try:
            total = from_bytes(encoded)
            if total.slot.round != model.round:
                return
            self.node.policy.check_survivors(len(total.senders), self.contract)
            answers = unpack(release)
            totals = session.open_evaluation(model, total, self.node.record_opening, answers)
        except FlheError as error:
            log_failure(self.node.store, "evaluation", error)
            logger.warning("the evaluation of round %d is not reported: %s", model.round, error)
            return
        self._tell(f"{records.EVALUATION}{model.round}", totals)

    def catch_up(self, record: ConfigRecord, content: RecordDict) -> None:
        """Take the checkpoint or the first model from a message, and open its sums."""
        named = record.get("history")
        box, initial = content.get(records.BOX), content.get(self.contract.terms.arrays_key)
        if isinstance(box, ArrayRecord):
            self.adopt(records.to_pieces(box), records.bytes_list(record, "vouchers"))
        if self.model is None and isinstance(initial, ArrayRecord):
            self.model = Model.initial(records.to_numpy(initial))
            self.check_first(self.model)
            # A first model is kept once its history, or a sum that opens on it, shows that the
            # others have it too. A copy altered in transit would separate this node for good.
            self.changed = named == self.model.history or (
                named is None and record.get("stage") != "sync"
            )
        self.open_evaluation(record)  # of the model before these sums
        names = "sums", "mean-squares", "releases"
        told = [records.bytes_list(record, name) for name in names]
        for i, (header, squares, release) in enumerate(zip_longest(*told, fillvalue=b"")):
            arrays = content.get(f"{records.SUM}.{i}")
            if not isinstance(arrays, ArrayRecord):
                raise ProtocolError(f"sum {i} of the message is missing")
            last = i == len(told[0]) - 1  # the named history includes all of them
            self.open(header, arrays, squares, release, named if last else None)
        self.open_evaluation(record)

    def take_served(self, record: ConfigRecord, content: RecordDict) -> None:
        """Take the model from a message, if the server reads the sums; keep nothing."""
        arrays = content.get(self.contract.terms.arrays_key)
        if not isinstance(arrays, ArrayRecord):
            return
        model = served(records.to_numpy(arrays), records.field(record, "base", int))
        if record.get("history", model.history) != model.history:
            raise DriftError("the message names another model than the one that it carries")
        node = self.node
        node.settle_draft(model.round, sent=False)
        # The model's senders are unknown here: a node knows which set it has signed.
        signs = self.contract.terms.scheme.opened_together
        round_, _, step = node.journal(self.epoch.id).mark
        counted = round_ * (step == CONSIST) if signs else node.last_sent()
        self.app.state.settle(model.round, counted)
        self.model = model


def follow(node: Node, record: ConfigRecord, message: Message, app: App) -> Follower:
    """Bring the node's model up to date with the message, and keep it.

    Raises NoKeyError: the node has no usable key; PolicyError: the terms differ from the
    federation's; DriftError: the message starts from another model; ProtocolError: a part of the
    message is invalid, or does not open.
    """
    follower = Follower(node, app, *agreement.current(node, record, app))
    if follower.contract.asks:
        raise ProtocolError("this federation answers queries: it has no model")
    if follower.contract.terms.scheme.reader == "server":
        follower.take_served(record, message.content)
        return follower
    follower.model = node.load_model()
    try:
        follower.catch_up(record, message.content)
    finally:
        # Also the sums before one that fails.
        if follower.changed and follower.model is not None:
            node.save_model(follower.model)
    if follower.changed:
        # From its file it takes no memory while it is not used, and training takes much.
        follower.model = node.load_model() or follower.model
    base = record.get("history")
    if base is not None and (follower.model is None or follower.model.history != base):
        raise DriftError("this node's model has another history than the others'")
    return follower


# --- stages that pass a model on ---


def status(node: Node, _record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Return this node's identity and progress; all of it is public."""
    model = node.load_model()
    return records.reply(
        member=node.identity.public,
        epoch=node.usable_epoch() or b"",
        round=-1 if model is None else model.round,
        history=b"" if model is None else model.history,
    )


def sync(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Catch up, and return round, history and a keyed digest of the model."""
    follower = follow(node, record, message, app)
    if follower.model is None:
        return follower.reply(round=-1)
    session, model = follower.session()
    digest = session.digest(model)
    return follower.reply(round=model.round, history=model.history, digest=digest)


def initial(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Make the federation's first model, and seal it for the others."""
    follower = follow(node, record, message, app)
    if follower.model is None:
        arrays = records.to_numpy(app.initial())
        follower.model = Model.secret_initial(arrays, secrets.token_bytes(32))
        follower.check_first(follower.model)
        node.save_model(follower.model)
    elif follower.model.round != 0:
        raise ProtocolError("an initial model was requested in the middle of a federation")
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
    """Seal the model for the group, so that the server can keep it unread."""
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
    """Return a model sealed for an epoch's members and those to whom they give its key."""
    box = seal.seal(ModelKey.of(agreed), model.round, agreed.rank, model.chunks())
    return records.from_pieces(box)

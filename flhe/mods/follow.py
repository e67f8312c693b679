"""Following: a message brings what a node lacks, and the node brings its model up to date.

In this order, whatever of it is there: the confirmations that begin an epoch, a sealed checkpoint or
the plain initial model, the sums of the rounds since. A node never goes back to an earlier round.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flhe.coding.extras import Totals
from flhe.errors import AlteredError, DriftError, EquivocationError, FlheError, ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.answers import unpack
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.model_key import ModelKey
from flhe.mods import agreement, records
from flhe.mods.stages import App, Stopwatch, reply
from flhe.node.audit import log_failure
from flhe.node.node import Node
from flhe.schemes.sealed import from_bytes
from flhe.training import chain
from flhe.training.contract import Contract
from flhe.training.due import check_ahead
from flhe.training.model import Model
from flhe.training.reading import finite, served
from flhe.training.session import Session
from flhe.training.terms import Terms

logger = logging.getLogger("flhe")


@dataclass(slots=True)
class Follower:
    """A node on its way to where the others are; `disclosed`: what it may say of sums it opened."""

    node: Node
    app: App
    epoch: Epoch
    contract: Contract
    model: Model | None
    watch: Stopwatch = field(default_factory=Stopwatch)
    disclosed: RecordDict = field(default_factory=RecordDict)
    changed: bool = False
    missed: bool = False

    @property
    def terms(self) -> Terms:
        """How updates are encoded and encrypted."""
        return self.contract.terms

    def session(self) -> tuple[Session, Model]:
        """The session of this model; ProtocolError while there is none."""
        if self.model is None:
            raise DriftError("this node has no model and was sent none")
        return Session(self.epoch, self.terms, self.model.layout), self.model

    def reply(self, **fields: object) -> RecordDict:
        """A reply with the seconds that went by, and what may be said of sums."""
        content = reply(self.watch, **fields)
        content.update(self.disclosed)
        return content

    def unseal(self, box: list[bytes]) -> tuple[Model, int]:
        """The model in a sealed checkpoint of this epoch, and the rank that its sealer says it has."""
        with self.watch:
            key = ModelKey.of(self.epoch)
            header, chunks = seal.unseal_stream(key.key, box, key.header())
            plain = bytearray()
            for chunk in chunks:  # one copy beside the box, never two
                plain += chunk
            model = Model.from_bytes(plain)
        if model.round != header["round"]:
            raise ProtocolError("the checkpoint holds another round than its header says")
        chain.check(model.chain, model.history, model.round)
        mask = model.mask
        if not model.round and (model.chain or model.moments or model.memory or mask is not None):
            raise ProtocolError("a first model holds nothing that only sums make")
        if mask is not None and (
            not self.terms.select.mapped or mask.count != self.terms.select.count(model.layout)
        ):
            raise ProtocolError("the checkpoint holds a selection that these terms do not make")
        if model.moments and tuple(model.moments) != self.terms.optimizer.moments:
            raise ProtocolError("the checkpoint is of another optimizer")
        return model, header["rank"]

    def adopt(self, box: list[bytes], vouchers: list[bytes]) -> None:
        """Take the model of a sealed checkpoint, unless the own one is further on.

        Raises EquivocationError: its chain of sums is not that of the own model; ProtocolError: too few
        members vouch for it, or it is of another model; AuthenticationError: a voucher is forged.
        """
        model, sealer = self.unseal(box)
        if model.round:
            self.contract.check_round(model.round)
        own, epoch = self.model, self.epoch
        if own is not None and model.round < own.round:
            return
        session, digest = self._told(model)
        if own is not None and model.round == own.round and self._told(own)[1] == digest:
            return
        # Nobody but its maker has a first model; it reaches the others by a checkpoint.
        need = epoch.roster.collusion + 1 if model.round else 1
        session.holding(model, digest).check_all(vouchers, sealer, need)
        # A first model may have been told by the server alone: what members have counts.
        if own is not None and own.round > 0:
            if model.layout != own.layout:
                raise ProtocolError("the checkpoint holds another model than this federation's")
            self._check_follows(own, model, epoch.roster.name(epoch.members[sealer]))
        if own is not None and model.round == own.round:
            logger.warning(
                "round %d: this node's model was not the others', it takes theirs", own.round
            )
            self.node.drop_draft()
        self.node.check_mask(model.mask)
        self.node.skip_openings(model.round)
        sent = self.node.last_sent()
        self.app.state.settle(model.round, sent)
        self.node.skip_draft(model.round)
        self._say_missing(0 if own is None else own.round, model, sent)
        self.model, self.changed = model, True

    @staticmethod
    def _check_follows(own: Model, model: Model, sealer: str) -> None:
        """Refuse a checkpoint of other sums than those in the own model; EquivocationError."""
        if own.history in (model.history, *(link.before for link in model.chain)):
            return
        mine, theirs = (chain.results(m.chain, m.history) for m in (own, model))
        known = (r for r in sorted(mine) if r >= min(theirs) and theirs.get(r) != mine[r])
        round_ = next(known, own.round)
        here, there = mine.get(round_, own.history), theirs.get(round_, b"")
        raise EquivocationError(
            f"round {round_}: the result here is {here.hex()[:16]}, in the checkpoint by {sealer} it "
            f"is {there.hex()[:16] or 'none'}: the sites were told two results. Compare flhe log with "
            "the other sites'; to take theirs, move runs/<id>/model in this state directory away"
        )

    def _say_missing(self, after: int, model: Model, sent: int) -> None:
        """Warn where a checkpoint's sums lack updates that this node has sent, or may have sent."""
        own = self.epoch.members[self.epoch.rank]
        if gone := chain.without(model.chain, own, after, sent):
            self.missed = True
            rounds = f"rounds {gone[0]} to {gone[-1]}" if gone[1:] else f"round {gone[0]}"
            logger.warning("%s: this node's update is not in the sums", rounds)

    def _told(self, model: Model) -> tuple[Session, bytes]:
        """The session of a model that a message holds, and its digest."""
        session = Session(self.epoch, self.terms, model.layout)
        with self.watch:
            return session, session.digest(model)

    def open(
        self,
        header: bytes,
        arrays: ArrayRecord,
        mean_squares: bytes = b"",
        release: bytes = b"",
        *,
        expected: bytes | None = None,
    ) -> None:
        """Open one round's sum, unless that was done before.

        `mean_squares` is the sum that the round's thresholds were fitted on, `release` what its
        senders' masking-key agreement released, where there was one. A wrong one opens nothing: it is
        in the slot that they encrypted for. `expected` is the history with this sum in it, where the
        message names one.

        Raises AlteredError: another sum than the one that the message speaks of.
        """
        session, model = self.session()
        floats = session.layout.floats if self.terms.codec.sparse else 0
        total = records.to_sealed(header, arrays, take=True, floats=floats)
        if total.slot.round <= model.round:
            return  # the server had not heard of it
        fitted_on = from_bytes(mean_squares) if mean_squares else None
        with self.watch:
            digest = session.digest(model)
        self.contract.check_round(total.slot.round)
        check_ahead(model, total.slot.round, self.node.reached(self.epoch.id))
        session.check(model, total, fitted_on, digest)
        for opened in (total, fitted_on):
            if opened is not None:
                self.node.policy.check_survivors(len(opened.senders))
        # Not written down as the one of its round: that would keep this node apart. Where a scheme
        # rounds, a sum that was damaged on the way may even open to the same values.
        if expected is not None:
            members, round_ = self.epoch.members, total.slot.round
            if chain.link_of(model.history, total, total.digest(), members).history != expected:
                raise AlteredError(
                    f"the sum of round {round_} is not the one that the message names"
                )
        node, slot = self.node, total.slot
        sent = self.epoch.rank in total.senders
        lost = node.tried(slot) and not sent
        with self.watch:
            # By the digest of the model that is here: the one of a claim may have been given up.
            answers = unpack(release) if release else ()
            record = node.record_opening
            self.model, totals = session.open(model, total, record, digest, fitted_on, answers)
            node.settle_draft(slot.round, sent=sent, contract=self.epoch.contract)
            self.app.state.settle(slot.round, slot.round if sent else 0)
        self.changed = True
        self.missed |= lost
        if lost:
            logger.warning(
                "round %d: this node's update is not in the sum, it trains again", slot.round
            )
        self.disclosed["flhe.opened"] = ConfigRecord({"round": slot.round, "missed": self.missed})
        self._tell(f"{records.MEANS}{slot.round}", totals)

    def _tell(self, name: str, totals: Totals) -> None:
        """Have the means of a sum go out with the reply, if it is this node that tells them."""
        if self.epoch.rank != 0:  # one teller, so a round is told of in one view only
            return
        means = finite(totals.metrics).items()
        # Three digits: masks are malleable, and a shifted sum must not tell the weight exactly.
        rounded = {n: float(f"{v:.3g}") for n, v in means if self.node.policy.allows_metric(n)}
        self.disclosed[name] = MetricRecord(rounded)  # type: ignore[arg-type]

    def open_evaluation(self, encoded: bytes, release: bytes) -> None:
        """Open what members found of the model that is here, and tell the means.

        Only the teller is sent it. What does not open keeps nobody from training.
        """
        if not encoded or self.model is None:
            return
        session, model = self.session()
        try:
            total = from_bytes(encoded)
            if total.slot.round != model.round:
                return
            self.node.policy.check_survivors(len(total.senders))
            answers = unpack(release) if release else ()
            with self.watch:
                record = self.node.record_opening
                totals = session.open_evaluation(model, total, record, answers)
        except FlheError as error:
            log_failure(self.node.store, "evaluation", error)
            logger.warning("the evaluation of round %d is not told: %s", model.round, error)
            return
        self._tell(f"{records.EVALUATION}{model.round}", totals)


def follow(node: Node, record: ConfigRecord, message: Message, app: App) -> Follower:
    """Bring the node's model up to date with what the message carries, and keep it.

    Raises NoKeyError: the node has no usable key; PolicyError: other terms than the federation's;
    DriftError: the model is not the one that the message starts from; ProtocolError: something in the
    message that does not belong there, or does not open.
    """
    agreed, contract = agreement.current(node, record, app)
    terms = contract.terms
    if terms.scheme.reader == "server":
        return _followed(node, record, message, app, agreed, contract)
    follower = Follower(node, app, agreed, contract, node.load_model())
    box = message.content.get(records.BOX)
    if isinstance(box, ArrayRecord):
        follower.adopt(records.to_pieces(box), records.bytes_list(record, "vouchers"))
    initial = message.content.get(terms.arrays_key)
    if follower.model is None and isinstance(initial, ArrayRecord):
        follower.model = Model.initial(records.to_numpy(initial))
        # A first model is kept once it is known to be the others': by its history, or by a sum that
        # opens on it. One that was changed on the way would keep this node apart for good.
        named = record.get("history")
        follower.changed = named == follower.model.history or (
            named is None and record.get("stage") != "sync"
        )
    found = [records.optional(record, name, b"") for name in ("evaluation", "opens-evaluation")]
    try:
        follower.open_evaluation(*found)  # of the model before the sums that came
        names = "sums", "mean-squares", "releases"
        headers, *told = (records.bytes_list(record, name) for name in names)
        for i, header in enumerate(headers):
            arrays = message.content.get(f"{records.SUM}.{i}")
            if not isinstance(arrays, ArrayRecord):
                raise ProtocolError(f"sum {i} of the message is missing")
            beside = [kept[i] if i < len(kept) else b"" for kept in told]
            last = i == len(headers) - 1  # the history that is named has all of them in it
            expected = records.optional(record, "history", b"") or None if last else None
            follower.open(header, arrays, *beside, expected=expected)
        follower.open_evaluation(*found)
    finally:
        # Also what came before a sum that fails.
        if follower.changed and follower.model is not None:
            node.save_model(follower.model)
    base = record.get("history")
    if base is not None and (follower.model is None or follower.model.history != base):
        raise DriftError("this node's model has another history than the others'")
    return follower


def _followed(
    node: Node,
    record: ConfigRecord,
    message: Message,
    app: App,
    agreed: Epoch,
    contract: Contract,
) -> Follower:
    """A node where the server reads the sums: the message brings the model, nothing of it is kept."""
    terms = contract.terms
    arrays = message.content.get(terms.arrays_key)
    model = None
    if isinstance(arrays, ArrayRecord):
        model = served(records.to_numpy(arrays), records.field(record, "base", int))
        base = record.get("history")
        if base is not None and model.history != base:
            raise DriftError("the model that came with the message is not the one that it names")
        node.settle_draft(model.round, sent=False)
        # Nobody says whose updates are in the model: a node knows which set it has signed.
        signed = node.last_signed(agreed.id) if terms.scheme.opened_together else node.last_sent()
        app.state.settle(model.round, signed)
    return Follower(node, app, agreed, contract, model)

"""Following: a message brings what a node lacks, and the node brings its model up to date.

In this order, whatever of it is there: the confirmations that begin an epoch, a sealed checkpoint or
the plain initial model, the sums of the rounds since. A node never goes back to an earlier round.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import zip_longest

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flhe.coding.extras import Totals
from flhe.errors import AlteredError, DriftError, EquivocationError, FlheError, ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.answers import unpack
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey
from flhe.mods import agreement, records
from flhe.mods.app import App
from flhe.node.audit import log_failure
from flhe.node.node import Node
from flhe.schemes.sealed import from_bytes
from flhe.training import chain
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.reading import finite, served
from flhe.training.session import Session

logger = logging.getLogger("flhe")


@dataclass(slots=True)
class Follower:
    """A node on its way to where the others are; `disclosed`: what it may say of sums it opened."""

    node: Node
    app: App
    epoch: Epoch
    contract: Contract
    model: Model | None = None
    disclosed: RecordDict = field(default_factory=RecordDict)
    changed: bool = False
    missed: bool = False

    def session(self) -> tuple[Session, Model]:
        """The session of this model, and it; DriftError while there is none."""
        if self.model is None:
            raise DriftError("this node has no model and was sent none")
        contract = self.contract
        session = Session(self.epoch, contract.terms, self.model.layout, contract.least)
        return session, self.model

    def reply(self, **fields: object) -> RecordDict:
        """A reply with what may be said of sums."""
        content = records.reply(**fields)
        content.update(self.disclosed)
        return content

    def unseal(self, box: list[bytes]) -> tuple[Model, int]:
        """The model in a sealed checkpoint of this epoch, and the rank that its sealer says it has."""
        head, chunks = seal.unseal(ModelKey.of(self.epoch), box)
        plain = bytearray()
        for chunk in chunks:  # one copy beside the box, never two
            plain += chunk
        model = Model.from_bytes(plain)
        if model.round != head.round:
            raise ProtocolError("the checkpoint holds another round than its header says")
        chain.check(model.chain, model.history, model.round)
        mask, select = model.mask, self.contract.terms.select
        if not model.round and (model.chain or model.moments or model.memory or mask is not None):
            raise ProtocolError("a first model holds nothing that only sums make")
        if mask is not None and not (select.mapped and mask.count == select.count(model.layout)):
            raise ProtocolError("the checkpoint holds a selection that these terms do not make")
        if model.moments and tuple(model.moments) != self.contract.terms.optimizer.moments:
            raise ProtocolError("the checkpoint is of another optimizer")
        return model, head.rank

    def adopt(self, box: list[bytes], vouchers: list[bytes]) -> None:
        """Take the model of a sealed checkpoint, unless the own one is further on.

        Raises EquivocationError: its chain of sums is not that of the own model; ProtocolError: too few
        members vouch for it, or it is of another model; AuthenticationError: a voucher is forged.
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
        # Nobody but its maker has a first model; it reaches the others by a checkpoint.
        need = epoch.roster.collusion + 1 if model.round else 1
        session.holding(model, digest).check_all(vouchers, sealer, need)
        # A first model may have been told by the server alone: what members have counts.
        if own is not None and own.round > 0:
            if model.layout != own.layout:
                raise ProtocolError("the checkpoint holds another model than this federation's")
            self._check_follows(own, model, epoch.roster.name(epoch.members[sealer]))
        if model.round == reached:
            logger.warning(
                "round %d: this node's model was not the others', it takes theirs", reached
            )
            self.node.drop_draft()
        self.node.check_mask(model.mask)
        self.node.skip_openings(model.round)
        sent = self.node.last_sent()
        self.app.state.settle(model.round, sent)
        self.node.skip_draft(model.round)
        self._say_missing(max(reached, 0), model, sent)
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

    def open(
        self,
        header: bytes,
        arrays: ArrayRecord,
        mean_squares: bytes,
        release: bytes,
        expected: object,
    ) -> None:
        """Open one round's sum, unless that was done before.

        `mean_squares` is the sum that the round's thresholds were fitted on, `release` what its
        senders' masking-key agreement released; b"" where there was none. A wrong one opens nothing: it
        is in the slot that they encrypted for. `expected` is the history with this sum in it, or None.

        Raises AlteredError: another sum than the one that the message speaks of.
        """
        session, model = self.session()
        node = self.node
        floats = session.layout.floats if self.contract.terms.codec.sparse else 0
        total = records.to_sealed(header, arrays, take=True, floats=floats)
        round_ = total.slot.round
        if round_ <= model.round:
            return  # the server had not heard of it
        fitted_on = from_bytes(mean_squares) if mean_squares else None
        digest = session.digest(model)
        self.contract.check_due(model.round, round_, node.reached(self.epoch.id))
        session.check(model, total, fitted_on, digest)
        for opened in (total, fitted_on):
            if opened is not None:
                node.policy.check_survivors(len(opened.senders), self.contract)
        # Not written down as the one of its round: that would keep this node apart. Where a scheme
        # rounds, a sum that was damaged on the way may even open to the same values.
        if expected is not None:
            link = chain.link_of(model.history, total, total.digest(), self.epoch.members)
            if link.history != expected:
                raise AlteredError(
                    f"the sum of round {round_} is not the one that the message names"
                )
        sent = self.epoch.rank in total.senders
        lost = node.tried(total.slot) and not sent
        # By the digest of the model that is here: the one of a claim may have been given up.
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
        """Have the means of a sum go out with the reply, if it is this node that tells them."""
        if self.epoch.rank != 0:  # one teller, so a round is told of in one view only
            return
        means = finite(totals.metrics).items()
        # Three digits: masks are malleable, and a shifted sum must not tell the weight exactly.
        rounded = {n: float(f"{v:.3g}") for n, v in means if self.node.policy.allows_metric(n)}
        self.disclosed[name] = MetricRecord(rounded)  # type: ignore[arg-type]

    def open_evaluation(self, record: ConfigRecord) -> None:
        """Open what members found of the model that is here, and tell the means.

        Only the teller is sent it. What does not open keeps nobody from training.
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
            logger.warning("the evaluation of round %d is not told: %s", model.round, error)
            return
        self._tell(f"{records.EVALUATION}{model.round}", totals)

    def catch_up(self, record: ConfigRecord, content: RecordDict) -> None:
        """Take the checkpoint or the first model that a message brings, and open its sums."""
        named = record.get("history")
        box, initial = content.get(records.BOX), content.get(self.contract.terms.arrays_key)
        if isinstance(box, ArrayRecord):
            self.adopt(records.to_pieces(box), records.bytes_list(record, "vouchers"))
        if self.model is None and isinstance(initial, ArrayRecord):
            self.model = Model.initial(records.to_numpy(initial))
            # A first model is kept once it is known to be the others': by its history, or by a sum
            # that opens on it. One that was changed on the way would keep this node apart for good.
            self.changed = named == self.model.history or (
                named is None and record.get("stage") != "sync"
            )
        self.open_evaluation(record)  # of the model before the sums that came
        names = "sums", "mean-squares", "releases"
        told = [records.bytes_list(record, name) for name in names]
        for i, (header, squares, release) in enumerate(zip_longest(*told, fillvalue=b"")):
            arrays = content.get(f"{records.SUM}.{i}")
            if not isinstance(arrays, ArrayRecord):
                raise ProtocolError(f"sum {i} of the message is missing")
            last = i == len(told[0]) - 1  # the history that is named has all of them in it
            self.open(header, arrays, squares, release, named if last else None)
        self.open_evaluation(record)

    def take_served(self, record: ConfigRecord, content: RecordDict) -> None:
        """Take the model that a message brings, where the server reads the sums; nothing is kept."""
        arrays = content.get(self.contract.terms.arrays_key)
        if not isinstance(arrays, ArrayRecord):
            return
        model = served(records.to_numpy(arrays), records.field(record, "base", int))
        if record.get("history", model.history) != model.history:
            raise DriftError("the model that came with the message is not the one that it names")
        node = self.node
        node.settle_draft(model.round, sent=False)
        # Nobody says whose updates are in the model: a node knows which set it has signed.
        signs = self.contract.terms.scheme.opened_together
        counted = node.last_signed(self.epoch.id) if signs else node.last_sent()
        self.app.state.settle(model.round, counted)
        self.model = model


def follow(node: Node, record: ConfigRecord, message: Message, app: App) -> Follower:
    """Bring the node's model up to date with what the message carries, and keep it.

    Raises NoKeyError: the node has no usable key; PolicyError: other terms than the federation's;
    DriftError: the model is not the one that the message starts from; ProtocolError: something in the
    message that does not belong there, or does not open.
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
        # Also what came before a sum that fails.
        if follower.changed and follower.model is not None:
            node.save_model(follower.model)
    base = record.get("history")
    if base is not None and (follower.model is None or follower.model.history != base):
        raise DriftError("this node's model has another history than the others'")
    return follower

"""Contribution: a node's part of one sum, encrypted once, and resent unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from flwr.app import RecordDict

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.mods import records, survivors
from flhe.mods.follow import Follower
from flhe.node.journal import Step
from flhe.node.node import Node
from flhe.schemes.base import Sealer
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import SecureSum
from flhe.training.kind import EVALUATION, MEAN_SQUARES, Kind
from flhe.training.model import Model
from flhe.training.session import Session


@dataclass(frozen=True, slots=True)
class Turn:
    """One node's part in one attempt at a round.

    `digest` is the claimed keyed digest of the attempt's starting model, if there is one.
    """

    follower: Follower
    session: Session
    round: int
    attempt: int
    digest: bytes

    @classmethod
    def of(cls, follower: Follower, round_: int, attempt: int) -> Turn:
        """Return the turn of a node that is up to date."""
        session, model = follower.session()
        claimed = follower.node.claimed(session.place(model, round_, attempt))
        return cls(follower, session, round_, attempt, claimed or session.digest(model))

    @property
    def node(self) -> Node:
        """The node of this turn."""
        return self.follower.node

    @property
    def model(self) -> Model:
        """Starting model of the turn, until a contribution is encoded."""
        assert self.follower.model is not None
        return self.follower.model

    def check_unclaimed(self) -> None:
        """Refuse to begin if this attempt or a later one was claimed; ClaimedError."""
        self.node.check_unclaimed(self.session.epoch.id, self.round, self.attempt)

    def sum(self, kind: Kind | None = None, mean_squares: Sealed | None = None) -> SecureSum:
        """Return a sum of this attempt, by default the one that ends the round; see `Session.sum`."""
        of = self.model, self.round, self.attempt, mean_squares
        return self.session.sum(*of, kind=kind, digest=self.digest)

    def contribute(
        self, of: SecureSum, mode: str, make: Callable[[Sealer], tuple[Plain, Support | None]]
    ) -> RecordDict:
        """Return the reply with this node's part of a sum: the kept one, or `make`'s, encrypted.

        `mode` is the announced mode of the scheme. Refusals come before training and encoding.

        Raises ProtocolError: the scheme lacks the mode; ReuseError: the round's survivors were
        signed, or its sum was given up; DriftError: earlier updates used another selection;
        ClaimedError: it was claimed before, and is not kept.
        """
        slot = of.slot
        evaluation = slot.purpose == EVALUATION.purpose
        step: Step = "mean-squares" if slot.purpose == MEAN_SQUARES.purpose else "update"

        def encoded(sealer: Sealer) -> tuple[Plain, Support | None]:
            if not evaluation:
                self.node.check_mask(self.model.mask, keep=True)
            made, used = make(sealer), self.model.layout.nbytes
            self.follower.model = None  # free memory for encryption
            self.follower.app.give_back(used)
            return made

        content = contribute(self.node, self.session, of, mode, encoded, self.digest, step)
        content.update(self.follower.disclosed)
        answer = content.config_records[records.REPLY]
        answer["step"], answer["digest"] = slot.purpose if evaluation else step, self.digest
        return content


def contribute(
    node: Node,
    session: Session,
    of: SecureSum,
    mode: str,
    make: Callable[[Sealer], tuple[Plain, Support | None]],
    start: bytes,
    step: Step = "update",
) -> RecordDict:
    """Return the reply with a node's part of a sum; for the rest see `Turn.contribute`.

    The claim records `start`, as `step` of its attempt.
    """
    slot, together = of.slot, session.terms.scheme.opened_together
    kept = node.load_output(slot)
    if kept is None:
        of.adder.check_mode(mode)
        if together:
            survivors.check_ready(node, of)
        sealer = session.sealer(of)
        encoded, support = make(sealer)
        told = b"" if support is None else support.digest()
        claim = partial(node.claim, session, slot, start, step=step, support=told)
        sealed = of.contribute(
            session.epoch, sealer, encoded, claim, mode, support, threads=session.threads
        )
        del encoded
        if together:
            survivors.deal(node, session, sealer, slot)
        envelope = of.sign(node.identity, sealed)
        node.save_output(sealed, envelope)
    else:
        sealed, envelope = kept
    content = records.reply(
        resent=kept is not None,
        header=sealed.header(),
        envelope=envelope,
        history=slot.history,
        shares=survivors.shares(node, slot) if together else [],
    )
    content[records.UPDATE] = records.from_sealed(sealed, supports=False)  # sent before
    return content

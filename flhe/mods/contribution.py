"""Contribution: a node's part of one sum, encrypted once, and sent again as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flwr.app import RecordDict

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ReuseError
from flhe.mods import records, survivors
from flhe.mods.follow import Follower
from flhe.schemes.base import Sealer
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import SecureSum
from flhe.training.evaluation import EVALUATION
from flhe.training.mean_squares import MEAN_SQUARES
from flhe.training.session import Session


@dataclass(frozen=True, slots=True)
class Contribution:
    """What this node contributes to `of`.

    `digest` is the keyed one of the model that the sum starts from, `mode` the scheme's mode that was
    announced.
    """

    follower: Follower
    session: Session
    of: SecureSum
    digest: bytes
    mode: str = ""

    @property
    def _ends(self) -> bool:
        """Whether it is the last that this node sends in its round."""
        return self.of.slot.purpose != MEAN_SQUARES.purpose

    @property
    def _step(self) -> Literal["update", "mean-squares"]:
        return "update" if self._ends else "mean-squares"

    def again(self) -> RecordDict | None:
        """The reply that was sent before, once more; None where none was."""
        node, session, slot = self.follower.node, self.session, self.of.slot
        output = node.load_output(slot)
        if output is None:
            return None
        beside = survivors.dealt(node, session, slot) if self._ends else {}
        return self._reply(*output, beside, resent=True)

    def check_ready(self) -> None:
        """Refuse, before anything is trained or encoded, what may not be encrypted.

        Raises ProtocolError: a mode that the scheme does not have; ReuseError: the round's
        survivors were signed, or its sum was given up; DriftError: another selection than updates
        were encrypted under here.
        """
        self.of.adder.check_mode(self.mode)
        survivors.check_ready(self.follower.node, self.session, self.of)
        model = self.follower.model
        if model is not None and self.of.slot.purpose != EVALUATION.purpose:
            self.follower.node.bind_mask(model.mask)

    def encrypt(self, sealer: Sealer, encoded: Plain, support: Support | None = None) -> Sealed:
        """Claim and encrypt an encoded vector.

        Raises ReuseError: it was claimed before, or another support was told in this attempt.
        """
        node, session, of = self.follower.node, self.session, self.of
        chosen = b"" if support is None else support.digest()
        if support is not None and node.known_support(of.slot) != chosen:
            raise ReuseError("another support was told in this attempt: ask under a new one")

        def claim() -> None:
            step, mode = self._step, self.mode
            node.claim(session, of.slot, self.digest, step=step, support=chosen, mode=mode)

        with self.follower.watch:
            epoch, threads = session.epoch, session.threads
            return of.contribute(epoch, sealer, encoded, claim, self.mode, support, threads=threads)

    def deliver(self, sealer: Sealer, sealed: Sealed) -> RecordDict:
        """Sign and keep what was just encrypted; the reply that holds it."""
        node = self.follower.node
        with self.follower.watch:
            beside: survivors.Fields = {}
            if self._ends:
                beside = survivors.deal(node, self.session, sealer, self.of.slot)
            envelope = self.of.sign(node.identity, sealed)
            node.save_output(sealed, envelope)
        return self._reply(sealed, envelope, beside, resent=False)

    def _reply(
        self, sealed: Sealed, envelope: bytes, beside: survivors.Fields, *, resent: bool
    ) -> RecordDict:
        """The ciphertext, and what the server needs to add it.

        A support was told before, and does not travel again.
        `beside` is what the agreement on masking keys needs of the ciphertext's seed.
        """
        purpose = self.of.slot.purpose
        content = self.follower.reply(
            step=purpose if purpose == EVALUATION.purpose else self._step,
            resent=resent,
            header=sealed.header(),
            envelope=envelope,
            digest=self.digest,
            history=sealed.slot.history,
            **beside,
        )
        content[records.UPDATE] = records.from_sealed(sealed, supports=False)
        return content

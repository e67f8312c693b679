"""Updates: the model that they start from, what is not sent yet, and what was sent.

runs/<id>/model       the global model, up to the last opened round
runs/<id>/outbox      the last encrypted update, for sending again
runs/<id>/mean-squares the last encrypted mean squares, likewise
runs/<id>/evaluation  the last encrypted evaluation, likewise
runs/<id>/mask        hash of the selection that updates are encrypted under
runs/<id>/releases    how many updates with noise have left
runs/<id>/draft       an update whose round is not over (secret)
runs/<id>/residual    what sparse updates have not sent yet (secret)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ClaimedError, DriftError, PolicyError, ProtocolError
from flhe.node.claims import Claims
from flhe.node.folder import log_failure
from flhe.node.stored import StoredOutput
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.draft import Draft
from flhe.training.evaluation import EVALUATION
from flhe.training.mean_squares import MEAN_SQUARES
from flhe.training.model import Model
from flhe.wire.frame import frame, unframe

OUTBOX = "outbox"
_OUTPUTS = {kind.purpose: kind.purpose for kind in (MEAN_SQUARES, EVALUATION)}
"""Where the last ciphertext of each purpose is kept; any other one in the outbox."""


class Updates(Claims):
    """What a node keeps of its model and of its updates."""

    __slots__ = ()

    def load_model(self) -> Model | None:
        """The model that is on disk; None before the first message, and for one that is damaged."""
        data = self._kept("model")
        if data is None:
            return None
        try:
            return Model.from_bytes(data)
        except ProtocolError as error:  # as good as none: the others have it
            log_failure(self.store, "model", error)
            return None

    def save_model(self, model: Model) -> None:
        """Replace the model on disk, whole or not at all."""
        self.store.write_chunks(self._name("model"), model.chunks())

    # --- what was sent ---

    def save_output(self, sealed: Sealed, envelope: bytes) -> None:
        """Keep a ciphertext: if it is asked for again, these are the bytes that are sent."""
        head = frame(StoredOutput(sealed.header(), envelope))
        name = self._name(_OUTPUTS.get(sealed.slot.purpose, OUTBOX))
        self.store.write_chunks(name, [memoryview(head), *sealed.body()])

    def load_output(self, slot: Slot) -> tuple[Sealed, bytes] | None:
        """The kept ciphertext of this very slot, or None."""
        name = _OUTPUTS.get(slot.purpose, OUTBOX)
        if self.claimed(slot) is None or not self.store.exists(self._name(name)):
            return None
        sealed, envelope = self._output(name)
        return (sealed, envelope) if sealed.slot == slot else None

    def _output(self, name: str) -> tuple[Sealed, bytes]:
        data = self.store.read(self._name(name))
        kept, start = unframe(StoredOutput, data)
        body = np.frombuffer(data, np.uint8, offset=start)
        return Sealed.from_parts(kept.header, body), kept.envelope

    def last_sent(self) -> int:
        """Round of the last update that was encrypted here; 0 before there is one."""
        return self._last_output(OUTBOX) or 0

    def _last_output(self, name: str) -> int | None:
        return self._output(name)[0].slot.round if self.store.exists(self._name(name)) else None

    def check_unevaluated(self, round_: int) -> None:
        """Refuse to evaluate a second model of a round, in whatever epoch; ClaimedError."""
        last = self._last_output(EVALUATION.purpose)
        if last is not None and round_ <= last:
            raise ClaimedError(f"the model of round {round_} or a later one was evaluated here")

    def check_mask(self, mask: Support | None) -> None:
        """Refuse another selection than updates were encrypted under here; DriftError.

        What the other one leaves in clear was encrypted before: both together would show everything.
        """
        if mask is not None and self._kept("mask") not in (None, mask.digest()):
            raise DriftError("another selection than this node has sent updates under")

    def bind_mask(self, mask: Support | None) -> None:
        """Make a selection this federation's one, on disk, before an update is encrypted under it."""
        self.check_mask(mask)
        if mask is not None and self._kept("mask") is None:
            self.store.write(self._name("mask"), mask.digest())

    def count_release(self) -> None:
        """Count one more update with noise, on disk, before anything is trained for it.

        Raises PolicyError: there were as many as this node's policy allows.
        """
        before, most = self._number("releases"), int(self.policy.limits["max-releases"])
        if most and before >= most:
            raise PolicyError(
                f"updates with noise left this node {before} times, its policy allows {most}: each one "
                "tells more of the data; raise flhe-max-releases in the node config"
            )
        self.store.write(self._name("releases"), (before + 1).to_bytes(8, "big"))

    # --- what is not sent yet ---

    def save_draft(self, draft: Draft) -> None:
        """Keep an update until its round is over."""
        self.store.write_chunks(self._name("draft"), draft.chunks())

    def load_draft(self) -> Draft | None:
        """The update whose round is not over, if there is one."""
        data = self._kept("draft")
        return None if data is None else Draft.from_bytes(data)

    def residual(self) -> NDArray[np.float32] | None:
        """What sparse updates have not sent so far, shape (floats,); None before the first."""
        data = self._kept("residual")
        return None if data is None else Draft.from_bytes(data).residual

    def settle_draft(self, round_: int, *, sent: bool, contract: bytes = b"") -> None:
        """A round is over: what its update did not send stays for later, all of it if it is not `sent`.

        `contract` is the one that its senders trained under. What was trained under another, or for a
        round that has no sum, is dropped: it would come into a later sum alone, where everybody else
        was told to stand still.

        The residual is a function of the draft alone, so after a crash this may be done again.
        """
        draft = self.load_draft()
        if draft is None or draft.round > round_:
            return
        of_it = draft.round == round_ and draft.residual is not None
        if of_it and sent:
            self.store.move(self._name("draft"), self._name("residual"))
            return
        if of_it and draft.contract == contract:
            self.store.write_chunks(self._name("residual"), draft.given_back().chunks())
        self.store.erase(self._name("draft"))

    def make_room(self, epoch_id: bytes, draft: Draft | None, round_: int, attempt: int) -> None:
        """Before an attempt trains in the place of a draft: what it could not claim, it need not train.

        The round of the draft that goes is closed: were its sum opened yet, nothing would tell what of
        that draft was in it.

        Raises ClaimedError: this attempt or a later one was claimed before.
        """
        self.check_unclaimed(epoch_id, round_, attempt)
        if draft is not None and draft.round < round_:
            self.skip_openings(draft.round)

    def drop_draft(self) -> None:
        """Forget an update that started from a model that is not the others'."""
        self.store.erase(self._name("draft"))

    def skip_draft(self, round_: int) -> None:
        """A model of `round_` was taken from another member, so nobody says whose updates are in it.

        One that was encrypted was handed over, and counts as sent. Another one is dropped, as where
        updates are dense: the own model may have been another than the others', which is why it is
        given up. What was left of the rounds before stays.
        """
        draft = self.load_draft()
        if draft is None or draft.round > round_:
            return
        if self.last_sent() == draft.round:
            self.settle_draft(draft.round, sent=True)
        else:
            self.drop_draft()

"""Updates: the model that they start from, what is not sent yet, and what was sent.

runs/<id>/model                     the global model, up to the last opened round
runs/<id>/outbox                    the last encrypted update, for sending again
runs/<id>/{mean-squares,evaluation} the last ones that were encrypted, likewise
runs/<id>/mask                      hash of the selection that updates are encrypted under
runs/<id>/releases                  how many updates with noise have left
runs/<id>/draft                     an update whose round is not over (secret)
runs/<id>/residual                  what sparse updates have not sent yet (secret)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ClaimedError, DriftError, PolicyError
from flhe.node.claims import Claims
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.contract import MAX_BYTES
from flhe.training.draft import Draft
from flhe.training.evaluation import EVALUATION
from flhe.training.mean_squares import MEAN_SQUARES
from flhe.training.model import Model
from flhe.wire.frame import frame, unframe
from flhe.wire.record import Form, Record

OUTBOX = "outbox"
_OUTPUTS = {kind.purpose: kind.purpose for kind in (MEAN_SQUARES, EVALUATION)}
"""Where the last ciphertext of each purpose is kept; any other one in the outbox."""


@dataclass(frozen=True, slots=True)
class StoredOutput(Record):
    """What stands before a kept ciphertext."""

    FORM = Form("stored update", MAX_BYTES, row=True)

    header: bytes
    envelope: bytes


class Updates(Claims):
    """What a node keeps of its model and of its updates."""

    __slots__ = ()

    def load_model(self) -> Model | None:
        """The model that is on disk; None before the first message, and for one that is damaged."""
        return self._sound("model", Model.from_bytes)

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
        if self.claimed(slot) is None:
            return None
        output = self._kept(_OUTPUTS.get(slot.purpose, OUTBOX), _output)
        return output if output is not None and output[0].slot == slot else None

    def last_sent(self) -> int:
        """Round of the last update that was encrypted here; 0 before there is one."""
        output = self._kept(OUTBOX, _output)
        return 0 if output is None else output[0].slot.round

    def check_unevaluated(self, round_: int) -> None:
        """Refuse to evaluate a second model of a round, in whatever epoch; ClaimedError."""
        last = self._kept(EVALUATION.purpose, _output)
        if last is not None and round_ <= last[0].slot.round:
            raise ClaimedError(f"the model of round {round_} or a later one was evaluated here")

    def check_mask(self, mask: Support | None) -> None:
        """Refuse another selection than before, which would show what was encrypted; DriftError."""
        if mask is not None and self._kept("mask", bytes) not in (None, mask.digest()):
            raise DriftError("another selection than this node has sent updates under")

    def bind_mask(self, mask: Support | None) -> None:
        """As `check_mask`, and keep the first selection before an update is encrypted under it."""
        self.check_mask(mask)
        if mask is not None and self._kept("mask", bytes) is None:
            self.store.write(self._name("mask"), mask.digest())

    def count_release(self) -> None:
        """Count one more update with noise, on disk, before it is trained; PolicyError if too many."""
        before = int.from_bytes(self._kept("releases", bytes) or b"", "big")
        most = int(self.policy.limits["max-releases"])
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
        return self._kept("draft", Draft.from_bytes)

    def residual(self) -> NDArray[np.float32] | None:
        """What sparse updates have not sent so far, shape (floats,); None before the first."""
        return self._kept("residual", lambda data: Draft.from_bytes(data).residual)

    def settle_draft(self, round_: int, *, sent: bool, contract: bytes = b"") -> None:
        """End a round: what its update did not send stays for later, all of it if it is not `sent`.

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
        """Check that an attempt may train in the place of a draft; ClaimedError where it cannot claim.

        No sum of the draft's round is opened then: nothing would tell what of the draft was in it.
        """
        self.check_unclaimed(epoch_id, round_, attempt)
        if draft is not None and draft.round < round_:
            self.skip_openings(draft.round)

    def drop_draft(self) -> None:
        """Forget an update that started from a model that is not the others'."""
        self.store.erase(self._name("draft"))

    def skip_draft(self, round_: int) -> None:
        """End the rounds up to `round_`, whose model was taken from another member.

        Nobody says whose updates are in it. One that was encrypted counts as sent. Another one is
        dropped, because its own model may have been another than the others'.
        """
        draft = self.load_draft()
        if draft is None or draft.round > round_:
            return
        if self.last_sent() == draft.round:
            self.settle_draft(draft.round, sent=True)
        else:
            self.drop_draft()


def _output(data: bytes) -> tuple[Sealed, bytes]:
    """A kept ciphertext and its envelope."""
    kept, start = unframe(StoredOutput, data)
    return Sealed.from_parts(
        kept.header, np.frombuffer(data, np.uint8, offset=start)
    ), kept.envelope

"""Claims: what a node has used up of each round, and which rounds are over in whatever epoch.

runs/<id>/journal     what was claimed and opened, and which rounds are over (`journal.py`)
runs/<id>/shares      shares of the last update's seed, and the own one (secret)
runs/<id>/survivors   the set that was signed last, and the sum of its shares (secret)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from flhe.errors import ClaimedError, NoKeyError, ReuseError
from flhe.keys.agreement import masking
from flhe.node.folder import Folder
from flhe.node.journal import JOURNAL, Book, Journal, Mark
from flhe.node.stored import StoredNote
from flhe.schemes import sealed
from flhe.schemes.sealed import Slot
from flhe.training.evaluation import ATTEMPT, EVALUATION
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.session import Session

Step = Literal["mean-squares", "supports", "update", "consist"]
STEPS: tuple[Step, ...] = ("mean-squares", "supports", "update", "consist")
"""What leaves a node in one attempt at a round, in order; each is claimed once."""
UPDATE, CONSIST = STEPS.index("update"), STEPS.index("consist")

ENDS = sealed.UPDATE
"""Purpose of what ends a round. A sum of sensitivities ends one too, and is recorded as the same."""

SEEDS = ("shares", "survivors")
"""What belongs to the seeds of one epoch."""


class Claims(Folder):
    """What a node has claimed, opened, given up or reached."""

    __slots__ = ()

    @property
    def book(self) -> Book:
        """This federation's journal."""
        return Book(self.store, self._name(JOURNAL))

    def _journal(self, epoch_id: bytes) -> Journal:
        """What was used up under the keys of an epoch; NoKeyError unless it is the one in use."""
        journal = self.book.read()
        if journal is None:
            raise NoKeyError("what was used in this federation is missing: agree on a new epoch")
        journal.check_epoch(epoch_id)
        return journal

    def _last_claim(self, epoch_id: bytes) -> Mark:
        """Round, attempt and step that were claimed last; zeros before the first."""
        return self._journal(epoch_id).mark

    def _claim(self, slot: Slot, note: StoredNote, step: int) -> None:
        mark, data = (slot.round, slot.attempt, step), note.to_bytes()
        self.book.enter(lambda now: now.claimed(slot.epoch, mark, data))

    def claim(
        self,
        session: Session,
        slot: Slot,
        digest: bytes,
        *,
        step: Step = "update",
        support: bytes = b"",
        mode: str = "",
    ) -> None:
        """Claim the one use of a mask, on disk, before anything is encrypted.

        `digest` is of the model that the update starts from; it, the digest of the support that the
        server was told and the mode that it announced are kept with the claim.

        Raises ReuseError: this step or a later one was claimed before; the round's survivors were
        signed.
        """
        if session.terms.scheme.opened_together:
            self.check_unsigned(slot)
        note = StoredNote(digest, support, mode, slot.history)
        self._claim(slot, note, STEPS.index(step))

    def claimed(self, slot: Slot) -> bytes | None:
        """Digest of the model that a claimed attempt started from; None if it is not the last one."""
        note = self._note(slot)
        return None if note is None else note.digest

    def known_support(self, slot: Slot) -> bytes | None:
        """Digest of the support that the server was told in this attempt; None before it was."""
        note = self._note(slot)
        return None if note is None else note.support or None

    def _note(self, slot: Slot) -> StoredNote | None:
        journal = self._journal(slot.epoch)
        if journal.mark[:2] != (slot.round, slot.attempt):
            return None
        note = StoredNote.from_bytes(journal.note)
        return note if note.history == slot.history else None

    def check_unsigned(self, slot: Slot) -> None:
        """Refuse to encrypt in a round whose sum may be opened without it; ReuseError.

        An evaluation is of a round that is over, and is claimed once.
        """
        if slot.purpose == EVALUATION.purpose:
            return
        journal, round_ = self._journal(slot.epoch), slot.round
        if journal.mark[0] == round_ and journal.mark[2] == CONSIST:
            raise ReuseError(
                f"the survivors of round {round_} were signed here: two sums of one round would "
                "differ by single updates; go on with the next round"
            )
        if round_ <= journal.last_opened(ENDS):
            raise ReuseError(f"round {round_} was opened or given up here: go on with the next one")

    def check_unclaimed(self, epoch_id: bytes, round_: int, attempt: int) -> None:
        """Refuse to begin an attempt that is not beyond the last one; ClaimedError."""
        if (round_, attempt) <= self._last_claim(epoch_id)[:2]:
            raise ClaimedError(
                f"round {round_}, attempt {attempt} or a later one was answered here, from another "
                "start or under other settings: ask for another one"
            )

    def tried(self, slot: Slot) -> bool:
        """Whether `slot`'s round is the last one that was claimed, in whatever attempt."""
        return self._last_claim(slot.epoch)[0] == slot.round

    # --- whose seeds are added up ---

    def save_dealt(self, dealt: masking.Dealt) -> None:
        """Keep the shares of the update that is about to be sent; the last one's are erased."""
        for name in SEEDS:
            self.store.erase(self._name(name))
        self.store.write(self._name("shares"), dealt.to_bytes())

    def load_dealt(self) -> masking.Dealt | None:
        """The shares of the last update, if there are any."""
        data = self._kept("shares")
        return None if data is None else masking.Dealt.from_bytes(data)

    def load_survivors(self) -> masking.Agreed | None:
        """The set that was signed last, if there is one."""
        data = self._kept("survivors")
        return None if data is None else masking.Agreed.from_bytes(data)

    def save_survivors(self, agreed: masking.Agreed) -> None:
        """Keep the set that is about to be signed."""
        self.store.write(self._name("survivors"), agreed.to_bytes())

    def claim_set(self, slot: Slot, digest: bytes, write: Callable[[], None]) -> None:
        """Make a set the one set of survivors of its round, on disk, before anybody hears of it.

        `digest` is that of the set, `write` keeps what answering for it takes. May be called again for
        the same one.

        Raises ReuseError: another set was signed in this round, or another attempt was encrypted
        since.
        """
        signed = self.signed(slot)
        if signed is not None and signed != digest:
            raise ReuseError(f"another set of survivors was signed in round {slot.round}")
        last = self._last_claim(slot.epoch)
        if last[:2] != (slot.round, slot.attempt) or last[2] < UPDATE:
            raise ReuseError(
                "the survivors are not those of the last attempt that was encrypted here"
            )
        # Before the claim: what is signed can be unmasked, and what was not is replaced.
        write()
        if signed is None:
            note = StoredNote(self.claimed(slot) or b"", digest, "", slot.history)
            self._claim(slot, note, CONSIST)

    def signed(self, slot: Slot) -> bytes | None:
        """Digest of the set of survivors that was signed in this attempt; None before one was."""
        if self._last_claim(slot.epoch)[2] != CONSIST:
            return None
        note = self._note(slot)
        return None if note is None else note.support

    def last_signed(self, epoch_id: bytes) -> int:
        """Round whose survivors this node has signed, as the last thing it did; 0 if it was another."""
        round_, _, step = self._last_claim(epoch_id)
        return round_ if step == CONSIST else 0

    # --- which rounds are over ---

    def reached(self, epoch_id: bytes) -> int:
        """Last round that this node has opened, given up or encrypted in, in whatever epoch."""
        journal = self._journal(epoch_id)
        return max(journal.last_opened(ENDS), journal.last_reached())

    def record_opening(self, slot: Slot, digest: bytes) -> None:
        """Record the one sum of a round and purpose, on disk, before it is decrypted."""
        purpose = ENDS if slot.purpose == SENSITIVITY.purpose else slot.purpose
        self.book.enter(lambda now: now.recorded(slot.epoch, purpose, slot.round, digest))

    def skip_openings(self, round_: int) -> None:
        """A model of `round_` was taken from another member: no sum up to there is opened here."""
        self.book.give_up(round_)


def may_be_signed(journal: Journal) -> int:
    """Last round whose survivors may have been signed, and its sum be known.

    Of the rounds before the last one nothing is kept any more, so they count as signed; and so does one
    whose model was evaluated.
    """
    round_, attempt, step = journal.mark
    return round_ if step == CONSIST or attempt == ATTEMPT else max(round_ - 1, 0)

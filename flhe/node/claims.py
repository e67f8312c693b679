"""Claims: what a node has used up of each round, and which rounds are over in whatever epoch.

runs/<id>/floor       rounds that are over
runs/<id>/shares      shares of the last update's seed, and the own one (secret)
runs/<id>/survivors   the set that was signed last, and the sum of its shares (secret)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from flhe.errors import ClaimedError, NoKeyError, ReuseError
from flhe.keys.agreement import masking
from flhe.node.folder import Folder
from flhe.node.stored import HighWaterMarks, StoredNote
from flhe.schemes.sealed import Slot
from flhe.training.mean_squares import MEAN_SQUARES
from flhe.training.session import Session

Step = Literal["mean-squares", "supports", "update", "consist"]
STEPS: tuple[Step, ...] = ("mean-squares", "supports", "update", "consist")
"""What leaves a node in one attempt at a round, in order; each is claimed once."""
UPDATE, CONSIST = STEPS.index("update"), STEPS.index("consist")

SEEDS = ("shares", "survivors")
"""What belongs to the seeds of one epoch."""


class Claims(Folder):
    """What a node has claimed, opened, given up or reached."""

    __slots__ = ()

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
            self.check_unsigned(slot.epoch, slot.round)
        note = StoredNote(digest, support, mode, slot.history).to_bytes()
        self.store.claim(slot.epoch, slot.round, slot.attempt, note, STEPS.index(step))

    def claimed(self, slot: Slot) -> bytes | None:
        """Digest of the model that a claimed attempt started from; None if it is not the last one."""
        note = self._note(slot)
        return None if note is None else note.digest

    def known_support(self, slot: Slot) -> bytes | None:
        """Digest of the support that the server was told in this attempt; None before it was."""
        note = self._note(slot)
        return None if note is None else note.support or None

    def _note(self, slot: Slot) -> StoredNote | None:
        kept = self.store.claim_note(slot.epoch, slot.round, slot.attempt)
        note = None if kept is None else StoredNote.from_bytes(kept)
        return note if note is not None and note.history == slot.history else None

    def check_unsigned(self, epoch_id: bytes, round_: int) -> None:
        """Refuse to encrypt in a round whose sum may be opened without it; ReuseError."""
        last = self.store.last_claim(epoch_id)
        if last[0] == round_ and last[2] == CONSIST:
            raise ReuseError(
                f"the survivors of round {round_} were signed here: two sums of one round would "
                "differ by single updates; go on with the next round"
            )
        if round_ <= self.store.opened(epoch_id):
            raise ReuseError(f"round {round_} was opened or given up here: go on with the next one")

    def check_unclaimed(self, epoch_id: bytes, round_: int, attempt: int) -> None:
        """Refuse to begin an attempt that is not beyond the last one; ClaimedError."""
        if (round_, attempt) <= self.store.last_claim(epoch_id)[:2]:
            raise ClaimedError(
                f"round {round_}, attempt {attempt} or a later one was answered here, from another "
                "start or under other settings: ask for another one"
            )

    def tried(self, slot: Slot) -> bool:
        """Whether `slot`'s round is the last one that was claimed, in whatever attempt."""
        return self.store.last_claim(slot.epoch)[0] == slot.round

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
        last = self.store.last_claim(slot.epoch)
        if last[:2] != (slot.round, slot.attempt) or last[2] < UPDATE:
            raise ReuseError(
                "the survivors are not those of the last attempt that was encrypted here"
            )
        # Before the claim: what is signed can be unmasked, and what was not is replaced.
        write()
        if signed is None:
            note = StoredNote(self.claimed(slot) or b"", digest, "", slot.history)
            self.store.claim(slot.epoch, slot.round, slot.attempt, note.to_bytes(), CONSIST)

    def signed(self, slot: Slot) -> bytes | None:
        """Digest of the set of survivors that was signed in this attempt; None before one was."""
        if self.store.last_claim(slot.epoch)[2] != CONSIST:
            return None
        note = self._note(slot)
        return None if note is None else note.support

    def last_signed(self, epoch_id: bytes) -> int:
        """Round whose survivors this node has signed, as the last thing it did; 0 if it was another."""
        round_, _, step = self.store.last_claim(epoch_id)
        return round_ if step == CONSIST else 0

    # --- which rounds are over ---

    def floor(self) -> HighWaterMarks:
        """Rounds that are over here, in whatever epoch."""
        data = self._kept("floor")
        return HighWaterMarks() if data is None else HighWaterMarks.from_bytes(data)

    def _raise_marks(self, epochs: Iterable[bytes], *, masked: bool) -> None:
        """Keep what is over in `epochs`, before their marks go with their keys."""
        marks = HighWaterMarks()
        for epoch_id in epochs:
            opened = self.store.opened(epoch_id)
            if masked:
                opened = max(opened, self._signed_in(epoch_id))
            here = HighWaterMarks(opened, self.store.ranged(epoch_id), self._claimed_in(epoch_id))
            marks = marks.raised(here)
        self._keep_floor(marks)

    def _keep_floor(self, marks: HighWaterMarks) -> None:
        """Keep that rounds up to these marks are over."""
        before = self.floor()
        after = before.raised(marks)
        if after != before:
            self.store.write(self._name("floor"), after.to_bytes())

    def reached(self, epoch_id: bytes) -> int:
        """Last round that this node has opened, given up or encrypted in, in whatever epoch."""
        floor, opened = self.floor(), self.store.opened(epoch_id)
        return max(floor.opened, floor.reached, opened, self._claimed_in(epoch_id))

    def _claimed_in(self, epoch_id: bytes) -> int:
        try:
            return self.store.last_claim(epoch_id)[0]
        except NoKeyError:
            return self.store.claimed_round(epoch_id)

    def _signed_in(self, epoch_id: bytes) -> int:
        """Last round of an epoch whose survivors may have been signed, and its sum be known.

        Of the rounds before the last one nothing is kept any more, so they count as signed.
        """
        try:
            round_, _, step = self.store.last_claim(epoch_id)
        except NoKeyError:
            return self.store.claimed_round(epoch_id)
        return round_ if step == CONSIST else max(round_ - 1, 0)

    def record_opening(self, slot: Slot, digest: bytes) -> None:
        """Record the one sum of a round, on disk, before it is decrypted; mean squares likewise."""
        first = slot.purpose == MEAN_SQUARES.purpose
        record = self.store.record_mean_squares if first else self.store.record_opening
        record(slot.epoch, slot.round, digest)

    def skip_openings(self, epoch_id: bytes, round_: int) -> None:
        """A model of `round_` was taken from another member: no sum up to there is opened here."""
        self.store.raise_opened(epoch_id, round_, round_)
        self._keep_floor(HighWaterMarks(round_, round_))

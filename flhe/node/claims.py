"""Claims: what a node has used up of each round, and which rounds are over in whatever epoch.

runs/<id>/journal     what was claimed, signed and opened, and which rounds are over (`journal.py`)
runs/<id>/shares      shares of the last update's seed, and the own one (secret)
runs/<id>/survivors   the set that was signed last, and the sum of its shares (secret)
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Literal

from flhe.errors import ClaimedError, NoKeyError, ProtocolError, ReuseError
from flhe.keys.agreement import masking
from flhe.keys.agreement.voids import Void
from flhe.node.folder import Folder
from flhe.node.journal import JOURNAL, ONE_SET, Book, Journal, Mark, SignedSet
from flhe.node.stored import StoredNote
from flhe.schemes import sealed
from flhe.schemes.base import FREE, Spends
from flhe.schemes.sealed import Slot
from flhe.training.due import MAX_AHEAD
from flhe.training.evaluation import EVALUATION
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.session import Session
from flhe.wire.canonical import dumps

Step = Literal["mean-squares", "supports", "update", "consist", "void"]
STEPS: tuple[Step, ...] = ("mean-squares", "supports", "update", "consist", "void")
"""What leaves a node in one attempt at a round, in order; each is claimed once."""
UPDATE, CONSIST, VOID = (STEPS.index(step) for step in ("update", "consist", "void"))

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
        """Refuse to encrypt where another sum, of this round or start, may be opened; ReuseError.

        An evaluation is of a round that is over, and is claimed once.
        """
        if slot.purpose == EVALUATION.purpose:
            return
        journal, round_ = self._journal(slot.epoch), slot.round
        found = journal.set_of(start_of(slot))
        if found is not None and found.slot != slot.digest():
            raise ReuseError(ONE_SET)
        if journal.mark[0] == round_ and journal.mark[2] >= CONSIST:
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

    def check_unspent(self, epoch_id: bytes, spends: Spends) -> None:
        """Refuse to train for a sum that the epoch's key may not open any more; as `spending`."""
        self._journal(epoch_id).spending(spends)

    def claim_set(
        self,
        slot: Slot,
        digest: bytes,
        scope: bytes,
        write: Callable[[], None],
        spends: Spends = FREE,
    ) -> None:
        """Make a set the one of its round and its start, on disk, before anybody hears of it.

        `digest` is that of the set, `scope` that of slot and circle (`Void.scope`), `write` keeps what
        answering for it takes, `spends` is what opening it takes of the key. May be called again for
        the same one.

        Raises ReuseError: another set was signed in this round or from this start, the slot was given
        up, or another attempt was encrypted since; NoKeyError: the key has opened what it may.
        """
        signed = self.signed(slot)
        if signed is not None and signed != digest:
            raise ReuseError(f"another set of survivors was signed in round {slot.round}")
        journal = self._journal(slot.epoch)
        last, start = journal.mark, start_of(slot)
        found = journal.set_of(start)
        if found is not None and found.slot != slot.digest():
            raise ReuseError(ONE_SET)
        if last[2] == VOID:
            raise ReuseError(f"the sets of round {slot.round} were given up here")
        if last[:2] != (slot.round, slot.attempt) or last[2] < UPDATE:
            raise ReuseError(
                "the survivors are not those of the last attempt that was encrypted here"
            )
        # Before the claim: what is signed can be unmasked, and what was not is replaced.
        write()
        if signed is None:
            note = StoredNote(self.claimed(slot) or b"", digest, "", slot.history).to_bytes()
            mark = slot.round, slot.attempt, CONSIST
            made = SignedSet(start, slot.digest(), scope, slot.round)
            kept = slot.purpose != EVALUATION.purpose  # of each model there is one evaluation

            def claimed(now: Journal) -> Journal:
                then = now.claimed(slot.epoch, mark, note).spending(spends)
                return then.with_set(made) if kept else then

            self.book.enter(claimed)

    def answer_set(self, slot: Slot) -> None:
        """Note, on disk, that what opens the signed set of `slot` is about to leave in part."""
        self.book.enter(lambda now: now.with_answer(slot.digest()))

    def give_up_set(self, slot: Slot) -> bool:
        """Sign and answer for no set of `slot` from here on; whether one was signed.

        Raises ReuseError: this node has answered for it; NoKeyError: an epoch that it was never in, or
        cannot act in; ProtocolError: another federation's, or far ahead.
        """
        journal = self.book.enter()
        if slot.run_id != self.run_id or slot.round > self._reached(journal) + MAX_AHEAD:
            raise ProtocolError("a set that no member of this federation signs soon")
        mark, digest = (slot.round, slot.attempt, VOID), slot.digest()
        note = StoredNote(b"", b"", "", slot.history).to_bytes()
        then = self.book.enter(lambda now: now.gave_up(slot.epoch, digest, mark, note))
        return any(each.slot == digest for each in then.signed)

    def forget_set(self, history: bytes, void: Void) -> None:
        """Be free to sign another set from `history`, where `void` shows that the signed one is void.

        What is of another set changes nothing.

        Raises QuorumError: too few have promised; ProtocolError, AuthenticationError: no members'
        promises.
        """
        slot, journal = void.slot, self.book.enter()
        found = journal.set_of(start_of(slot))
        if slot.history == history and found is not None and found.scope == void.scope:
            void.check()
            self.book.enter(lambda now: now.without_set(found.slot))

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
        return self._reached(self._journal(epoch_id))

    @staticmethod
    def _reached(journal: Journal) -> int:
        return max(journal.last_opened(ENDS), journal.last_reached())

    def record_opening(self, slot: Slot, digest: bytes) -> None:
        """Record the one sum of a round and purpose, on disk, before it is decrypted.

        What its senders released opens the one set of its start, and no other: a node that has answered
        for that set reads its sum even where the witness of its keys is gone, or all would have to stop
        whose machines start anew before they have.
        """
        purpose = ENDS if slot.purpose == SENSITIVITY.purpose else slot.purpose

        def recorded(now: Journal) -> Journal:
            return now.recorded(slot.epoch, purpose, slot.round, digest)

        found = self._journal(slot.epoch).set_of(start_of(slot))
        answered = found is not None and found.answered and found.slot == slot.digest()
        (self.book.enter_anyhow if answered else self.book.enter)(recorded)

    def skip_openings(self, round_: int) -> None:
        """A model of `round_` was taken from another member: no sum up to there is opened here."""
        self.book.enter_anyhow(lambda now: now.skipped(round_))


def may_be_signed(journal: Journal) -> int:
    """Last round whose survivors may have been signed, and its sum be known.

    Of the rounds before the last one nothing is kept any more, so they count as signed.
    """
    round_, _, step = journal.mark
    return round_ if step >= CONSIST else max(round_ - 1, 0)


def start_of(slot: Slot) -> bytes:
    """What one set is signed of: SHA-256 of the slot's purpose and history, 32 bytes."""
    return sha256(dumps([slot.purpose, slot.history])).digest()

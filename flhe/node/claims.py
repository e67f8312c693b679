"""Claims: usage marks of a node in each round, and the rounds that are over in any epoch.

runs/<id>/journal     what was claimed, signed and opened, and which rounds are over (`journal.py`)
runs/<id>/shares      shares of the last update's seed, and the own one (secret)
runs/<id>/survivors   the set that was signed last, and the sum of its shares (secret)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flhe.errors import ClaimedError, ProtocolError, ReuseError
from flhe.keys.agreement import masking
from flhe.keys.agreement.voids import Void
from flhe.keys.identity import Identity
from flhe.node.audit import log_failure
from flhe.node.budget import Budget
from flhe.node.journal import CONSIST, JOURNAL, STEPS, Book, Journal, Note, Step
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.base import Spends
from flhe.schemes.sealed import UPDATE, Slot
from flhe.training.contract import MAX_AHEAD, Contract
from flhe.training.kind import EVALUATION
from flhe.training.query import QUERY
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.session import Session

T = TypeVar("T")
SEEDS = ("shares", "survivors")
"""Files that belong to the mask seeds of one epoch."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims, openings and abandoned rounds of a site in one federation; its `store` is locked."""

    policy: Policy
    store: Store
    identity: Identity = field(repr=False)
    run_id: int

    def _name(self, name: str) -> str:
        return f"runs/{self.run_id}/{name}"

    def _kept(self, name: str, read: Callable[[bytes], T]) -> T | None:
        """Return `read` of a file's content, or None without the file."""
        name = self._name(name)
        return read(self.store.read(name)) if self.store.exists(name) else None

    def _sound(self, name: str, read: Callable[[memoryview], T]) -> T | None:
        """As `_kept`, of a file that is mapped into memory; None for a damaged one too."""
        path = self._name(name)
        try:
            return read(self.store.mapped(path)) if self.store.exists(path) else None
        except ProtocolError as error:
            log_failure(self.store, name, error)
            return None

    @property
    def book(self) -> Book:
        """This federation's journal."""
        return Book(self.store, self._name(JOURNAL))

    @property
    def budget(self) -> Budget:
        """Privacy budget of this site, for all federations together."""
        return Budget.of(self.store, self.identity.public, self.policy.limits)

    def check_affordable(self, contract: Contract) -> None:
        """Refuse a run whose remaining rounds would exceed this site's privacy budget; BudgetError."""
        mechanism, journal = contract.terms.codec.mechanism, self.book.read()
        if mechanism is not None:
            reached = 0 if journal is None else journal.last_reached()
            self.budget.check(mechanism, max(contract.last - reached, 1))

    def journal(self, epoch_id: bytes) -> Journal:
        """Return the journal without checking its witness; NoKeyError for another epoch's keys."""
        journal = self.book.known()
        journal.check_epoch(epoch_id)
        return journal

    def claim(
        self, session: Session, slot: Slot, digest: bytes, step: Step, support: bytes = b""
    ) -> None:
        """Claim the one use of a mask, on disk, before anything is encrypted.

        The claim records the digests of the starting model and of the support sent to the server.

        Raises ReuseError: this step or a later one was claimed, or the round's survivors were
        signed.
        """
        together = session.terms.scheme.opened_together
        if together:
            self.check_unsigned(slot)
        note = Note(digest, support, slot.history)
        mark = slot.round, slot.attempt, STEPS.index(step)

        def claimed(now: Journal) -> Journal:
            then = now.claimed(slot.epoch, mark, note)
            return self._asked(then, slot, together) if slot.purpose == QUERY.purpose else then

        self.book.enter(claimed)

    def check_asked(self, slot: Slot, *, together: bool) -> None:
        """Refuse, before the app answers, a query that this slot may not answer.

        Raises ReuseError, PolicyError: as `Journal.with_query`; ClaimedError: as `check_unclaimed`.
        """
        self.check_unclaimed(slot.epoch, slot.round, slot.attempt)
        self._asked(self.journal(slot.epoch), slot, together)

    def _asked(self, now: Journal, slot: Slot, together: bool) -> Journal:
        return now.with_query(slot, self.policy.max_queries, again=together)

    def claimed(self, slot: Slot) -> bytes | None:
        """Return the digest of an attempt's starting model; None if it is not the last attempt."""
        note = self.journal(slot.epoch).note_of(slot)
        return None if note is None else note.digest

    def known_support(self, slot: Slot) -> bytes | None:
        """Return the digest of the support sent to the server in this attempt, or None."""
        note = self.journal(slot.epoch).note_of(slot)
        return None if note is None else note.support or None

    def check_unsigned(self, slot: Slot, spends: Spends | None = None) -> None:
        """Refuse to encrypt if another sum of this round or start may be opened; ReuseError.

        As `spending`, also refuse if opening a sum would exceed what the epoch's key may spend. An
        evaluation belongs to a finished round and is claimed once.
        """
        journal, round_ = self.journal(slot.epoch), slot.round
        if spends is not None:
            journal.spending(spends)
        if slot.purpose == EVALUATION.purpose:
            return
        journal.check_set(slot)
        if journal.mark[0] == round_ and journal.mark[2] >= CONSIST:
            raise ReuseError(
                f"the survivors of round {round_} were signed here: two sums of one round would "
                "differ by single updates; go on with the next round"
            )
        if round_ <= journal.last_opened(UPDATE):
            raise ReuseError(f"round {round_} was opened or given up here: go on with the next one")

    def check_unclaimed(self, epoch_id: bytes, round_: int, attempt: int) -> None:
        """Refuse to begin an attempt that is not beyond the last one; ClaimedError.

        Raises NoKeyError if no claim is possible, before the app trains in vain.
        """
        journal = self.book.enter()
        journal.check_epoch(epoch_id)
        if (round_, attempt) <= journal.mark[:2]:
            raise ClaimedError(
                f"round {round_}, attempt {attempt} or a later one was answered here, from another "
                "start or under other settings: ask for another one"
            )

    # --- senders whose seeds are added ---

    def save_dealt(self, dealt: masking.Dealt) -> None:
        """Keep the shares of the update to be sent; erase those of the last one."""
        for name in SEEDS:
            self.store.erase(self._name(name))
        self.store.write(self._name("shares"), dealt.to_bytes())

    def load_dealt(self) -> masking.Dealt | None:
        """Return the shares of the last update, or None."""
        return self._kept("shares", masking.Dealt.from_bytes)

    def load_survivors(self) -> masking.Agreed | None:
        """Return the last signed survivor set, or None."""
        return self._kept("survivors", masking.Agreed.from_bytes)

    def claim_set(
        self, agreed: masking.Agreed, digest: bytes, scope: bytes, spends: Spends
    ) -> None:
        """Record a survivor set as the only one of its round and start, on disk, before signing.

        Repeating it for the same set is safe. Arguments and errors as of `Journal.with_set`.
        """
        slot = agreed.slot

        def signing(now: Journal) -> Journal:
            return now.with_set(slot, digest, scope, spends)

        found = self.book.known()
        changed = signing(found) != found
        # Before the claim: a signed set can be unmasked, and an unsigned one is replaced.
        self.store.write(self._name("survivors"), agreed.to_bytes())
        if changed:
            self.book.enter(signing)

    def give_up_set(self, slot: Slot) -> bool:
        """Sign and answer for no set of `slot` from now on; return whether one was signed.

        Raises ReuseError, NoKeyError: as `Journal.gave_up`; ProtocolError: the slot belongs to
        another federation, or lies far ahead.
        """

        def gave_up(now: Journal) -> Journal:
            if slot.run_id != self.run_id or slot.round > now.last_reached() + MAX_AHEAD:
                raise ProtocolError("a set that no member of this federation signs soon")
            return now.gave_up(slot)

        return any(each.slot == slot.digest() for each in self.book.enter(gave_up).signed)

    def forget_set(self, history: bytes, void: Void) -> None:
        """Allow another set from `history` if `void` proves that the signed one is never opened.

        Raises as `Void.check` if it proves no such thing.
        """

        def forgot(now: Journal) -> Journal:
            found = now.set_of(void.slot)
            if void.slot.history != history or found is None or found.scope != void.scope:
                return now
            void.check()
            return replace(now, signed=tuple(each for each in now.signed if each is not found))

        self.book.enter(forgot)

    # --- which rounds are over ---

    def record_opening(self, slot: Slot, digest: bytes) -> None:
        """Record the one sum of a round and purpose, on disk, before it is decrypted.

        The senders' shares open the one set of its start. A node that has answered for that set
        reads its sum even without a witness of its keys: otherwise a restart of all machines would
        stop all of them.
        """
        purpose = UPDATE if slot.purpose == SENSITIVITY.purpose else slot.purpose

        def recorded(now: Journal) -> Journal:
            return now.recorded(slot.epoch, purpose, slot.round, digest)

        found = self.journal(slot.epoch).set_of(slot)
        answered = found is not None and found.answered and found.slot == slot.digest()
        (self.book.note if answered else self.book.enter)(recorded)

    def record_total(self, slot: Slot, digest: bytes) -> None:
        """As `record_opening`, for a query's sum that members open alone: they signed no set."""

        def recorded(now: Journal) -> Journal:
            then = now.recorded(slot.epoch, slot.purpose, slot.round, digest)
            return then.with_total(slot)

        self.book.enter(recorded)

    def skip_openings(self, round_: int) -> None:
        """Open no sum up to `round_`, because a later model was taken from another member."""
        self.book.note(lambda now: now.skipped(round_))

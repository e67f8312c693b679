"""Journal: usage marks of a node in one federation, in one file with a witness off its disk.

The file runs/<id>/journal is replaced as a whole and flushed; then its witness follows
(`witness.py`). Only then does the node encrypt, open or sign. So after a loss of power a node has
either recorded a use or not made it. A journal that differs from its witness belongs to a directory
that was copied or rolled back. Its keys encrypt and open nothing until the group agrees on new
ones.

It cannot detect a snapshot that includes a running machine's memory: see docs/protocol.md.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Literal

from flhe.errors import ClaimedError, ConfigError, NoKeyError, PolicyError, ReuseError, StoreError
from flhe.node.store import Store
from flhe.schemes.base import Spends
from flhe.schemes.sealed import UPDATE, Slot
from flhe.training.kind import EVALUATION, MEAN_SQUARES
from flhe.training.query import QUERY
from flhe.training.sensitivity import SENSITIVITY
from flhe.wire.canonical import dumps
from flhe.wire.fields import U32, Hash, size
from flhe.wire.record import Form, Kept, Record

Mark = tuple[U32, U32, U32]
UNUSED: Mark = (0, 0, 0)
"""The mark before the first claim of an epoch; rounds count from 1."""
Step = Literal["mean-squares", "supports", "update", "consist", "void"]
STEPS: tuple[Step, ...] = ("mean-squares", "supports", "update", "consist", "void")
"""Steps of one attempt at a round, in order; each is claimed once."""
ENCRYPTED, CONSIST, VOID = (STEPS.index(step) for step in ("update", "consist", "void"))
JOURNAL = "journal"
"""Name of the file in a federation's folder."""
KEPT = 128
"""Number of rounds, for each purpose, whose result digest is kept."""
KEPT_SETS = 64
"""Number of starts whose signed set is kept. If members read the sums, a node never returns to an
older start. A server that reads them gains nothing: it can change one bit of its model as well.
"""
MAX_QUERIES = 4096
"""Maximum number of queries in one federation; each is recorded for good."""
FROM_A_MODEL = (UPDATE, MEAN_SQUARES.purpose, SENSITIVITY.purpose)
"""Purposes of sums that start from a model, and make the next one."""
KEPT_EPOCHS = 64
"""Number of finished epochs that are remembered."""


@dataclass(frozen=True, slots=True)
class Note(Record):
    """Digests kept with a claim: of the model, of the support or the survivors, and of the slot."""

    FORM = Form("claim", row=True)

    digest: bytes = b""
    support: bytes = b""
    history: bytes = b""


@dataclass(frozen=True, slots=True)
class SignedSet(Record):
    """The only survivor set signed from one start.

    `start` is SHA-256 of the purpose and history of its slot. `slot` and `scope` are the digests of
    the slot, and of slot and circle (`flhe.keys.agreement.voids`). `answered` says whether this
    node may have sent its shares for unmasking the set.
    """

    FORM = Form("signed set", row=True)

    start: Hash
    slot: Hash
    scope: Hash
    round: U32
    answered: bool = False


@dataclass(frozen=True)
class Journal(Kept):
    """The last uses of one federation's keys.

    `witness` is the witness's name, `entry` its content and `before` its previous content, 16
    random bytes each. `agreement` is SHA-256 of the key agreement under way, `epoch` the one epoch
    whose keys may be used; b"" for none. `mark` holds round, attempt and step of the last claim,
    with `note`.

    `opened` has SHA-256 of the one result of each purpose, by round; no other result up to round
    `over` is opened any more. `reached` is the last round before this epoch. `signed` holds the
    last signed survivor set of each start, of any epoch. `past` lists finished epochs of this
    federation: their keys open and sign nothing. `spent` counts the coefficients that shares of
    this epoch's key may have opened, if no party holds the whole key. `queries` are hashes of the
    queries answered or opened, by number.
    """

    FORM = Form(
        "journal",
        1 << 19,
        version=4,
        row=True,
        error=ConfigError,
        damaged=StoreError(
            "the record of finished rounds is damaged here: begin another federation"
        ),
    )

    witness: Annotated[bytes, size(16)]
    entry: Annotated[bytes, size(16)]
    before: Annotated[bytes, size(0, 16)] = b""
    agreement: Annotated[bytes, size(0, 32)] = b""
    epoch: Annotated[bytes, size(0, 16)] = b""
    mark: Mark = UNUSED
    note: Note = Note()
    opened: dict[str, dict[U32, Hash]] = field(default_factory=dict)
    over: U32 = 0
    reached: U32 = 0
    signed: tuple[SignedSet, ...] = ()
    past: tuple[Annotated[bytes, size(16)], ...] = ()
    spent: U32 = 0
    queries: dict[U32, Hash] = field(default_factory=dict)

    def check_epoch(self, epoch_id: bytes) -> None:
        """Refuse any epoch but the one whose keys may be used; NoKeyError."""
        if not epoch_id or epoch_id != self.epoch:
            raise NoKeyError("the keys of this epoch may not be used here: agree on a new one")

    def claimed(self, epoch_id: bytes, mark: Mark, note: Note) -> Journal:
        """Return the journal with a claim, which must be beyond the last one; ClaimedError."""
        self.check_epoch(epoch_id)
        if mark <= self.mark:
            raise ClaimedError(
                f"round {mark[0]}, attempt {mark[1]} or a later one was claimed before: resend the "
                "cached message, or retry under a new attempt"
            )
        return replace(self, mark=mark, note=note)

    def note_of(self, slot: Slot) -> Note | None:
        """Return the note of an attempt's claims; None if it is not the last attempt."""
        same = self.mark[:2] == (slot.round, slot.attempt)
        return self.note if same and self.note.history == slot.history else None

    def recorded(self, epoch_id: bytes, purpose: str, round_: int, digest: bytes) -> Journal:
        """Return the journal with the only result of a purpose and round; ReuseError for a second.

        Two sums of one round would differ by single updates.
        """
        self.check_epoch(epoch_id)
        kept = self.opened.get(purpose, {})
        if round_ in kept:
            if not hmac.compare_digest(kept[round_], digest):
                raise ReuseError(f"another result of round {round_} was opened before: skip it")
            return self
        if round_ <= self.last_opened(purpose):
            raise ReuseError(
                f"the result of round {round_} is no longer recorded here: skip the round"
            )
        last = dict(sorted({**kept, round_: digest}.items())[-KEPT:])
        return replace(self, opened={**self.opened, purpose: last})

    def last_opened(self, purpose: str) -> int:
        """Return the last round opened or given up for this purpose; -1 if none."""
        # A member with a model from another one may still report its evaluation.
        over = self.over - (purpose == EVALUATION.purpose)
        return max((over or -1, *self.opened.get(purpose, {})))

    def last_reached(self) -> int:
        """Return the last round opened, given up or claimed, in any epoch."""
        return max(self.last_opened(UPDATE), self.reached, self.mark[0])

    def skipped(self, over: int) -> Journal:
        """Return the journal with all rounds up to `over` closed."""
        return replace(self, over=max(self.over, over))

    def begun(self, epoch_id: bytes, over: int) -> Journal:
        """Return the journal with another epoch in use; for the same epoch all claims are kept."""
        after = self.skipped(over)
        if epoch_id == self.epoch:
            return after
        if epoch_id in self.past:
            raise NoKeyError("this epoch is over here: agree on a new one")
        reached = self.last_reached()
        return replace(after.ended(), epoch=epoch_id, mark=UNUSED, note=Note(), reached=reached)

    def ended(self) -> Journal:
        """Return the journal with no epoch in use; the current epoch is over for good."""
        past = (*self.past, self.epoch)[-KEPT_EPOCHS:] if self.epoch else self.past
        return replace(self, epoch=b"", past=past, spent=0)

    def spending(self, spends: Spends) -> Journal:
        """Return the journal with the cost of opening one more sum charged to the epoch's key.

        Raises NoKeyError: the key's limit is reached; ConfigError: no key may open such a sum.
        """
        if spends.takes > spends.of:
            raise ConfigError(
                f"opening a sum takes {spends.takes} coefficients of this model, and one key may open "
                f"{spends.of}: train fewer values, or under another scheme"
            )
        if self.spent + spends.takes > spends.of:
            raise NoKeyError("this epoch's key has opened as much as it may: agree on another one")
        return replace(self, spent=self.spent + spends.takes)

    # --- queries ---

    def with_query(self, slot: Slot, most: int, *, again: bool) -> Journal:
        """Return the journal with a query to be answered, under its only number.

        Two sums of one question, over different members, would differ by single answers. If members
        open sums together, the last query may be asked `again` under a later number: only one of
        its sets is signed, unless members have given that up (`check_set`).

        Raises ReuseError: the query has another number, the number another query, a later one was
        asked, or its sum was opened; PolicyError: more than `most` queries.
        """
        number, query, last = slot.round, slot.history, max(self.queries, default=0)
        if self.queries.get(number) == query and number == last:
            if number in self.opened.get(QUERY.purpose, {}):
                raise ReuseError(f"a sum of query {number} was opened here: it has no other one")
            return self
        if number <= last:
            raise ReuseError(f"query {last} was answered here: give the next query a later number")
        known = max((of for of, each in self.queries.items() if each == query), default=0)
        if known and not (again and known == last):
            raise ReuseError(
                f"this query was answered here as number {known}: a second sum of it, over other "
                "members, would reveal single answers"
            )
        if len(self.queries) >= min(most, MAX_QUERIES):
            raise PolicyError(
                f"{len(self.queries)} queries were answered in this federation, this site's "
                "limit: raise flhe-max-queries in the node config, or begin another one"
            )
        return replace(self, queries={**self.queries, number: query})

    def with_total(self, slot: Slot) -> Journal:
        """Return the journal with a query whose sum is to be opened, under its only number.

        Two sums of one question, under two numbers, would differ by single answers.

        Raises ReuseError: the query has another number, or the number another query.
        """
        number, query = slot.round, slot.history
        known = [of for of, each in self.queries.items() if each == query]
        if self.queries.get(number, query) != query or (known and number not in known):
            said = f"this query has another number here than {number}"
            raise ReuseError(f"{said}: a second sum of it would reveal single answers")
        if not known and len(self.queries) >= MAX_QUERIES:
            raise ReuseError(f"this federation has reached its limit of {MAX_QUERIES} queries")
        return replace(self, queries={**self.queries, number: query})

    # --- sets of survivors ---

    def set_of(self, slot: Slot) -> SignedSet | None:
        """Return the set signed from the start of `slot`, or None."""
        start = start_of(slot.purpose, slot.history)
        return next((each for each in self.signed if each.start == start), None)

    def signed_beside(self, history: bytes) -> bool:
        """Return whether a set of updates to another model than that of `history` was signed."""
        own = {start_of(purpose, history) for purpose in FROM_A_MODEL}
        return any(each.start not in own for each in self.signed)

    def check_set(self, slot: Slot) -> None:
        """Refuse a slot if a set of another slot from its start was signed; ReuseError."""
        found = self.set_of(slot)
        if found is not None and found.slot != slot.digest():
            raise ReuseError(
                "a set of survivors was signed here for another sum from this model, and may be "
                "opened: two sums of one model would differ by single updates"
            )

    def signed_in(self, slot: Slot) -> bytes | None:
        """Return the digest of the set signed in this attempt, or None."""
        note = self.note_of(slot)
        return note.support if note is not None and self.mark[2] == CONSIST else None

    def with_set(self, slot: Slot, digest: bytes, scope: bytes, spends: Spends) -> Journal:
        """Return the journal with a set to be signed, the only one of its round and its start.

        `digest` is the set's, `scope` that of slot and circle (`Void.scope`), `spends` the cost of
        opening it. Repeating it for the same set changes nothing.

        Raises ReuseError: another set was signed in this round or from this start, the slot was
        given up, or another attempt was encrypted since; NoKeyError: the key's limit is reached.
        """
        self.check_epoch(slot.epoch)
        signed, note, step = self.signed_in(slot), self.note_of(slot), self.mark[2]
        if signed is not None and signed != digest:
            raise ReuseError(f"another set of survivors was signed in round {slot.round}")
        self.check_set(slot)
        if signed is not None:
            return self
        if step == VOID:
            raise ReuseError(f"the sets of round {slot.round} were given up here")
        if note is None or step < ENCRYPTED:
            raise ReuseError(
                "the survivors are not those of the last attempt that was encrypted here"
            )
        mark = slot.round, slot.attempt, CONSIST
        then = self.claimed(slot.epoch, mark, replace(note, support=digest)).spending(spends)
        # Each model has one evaluation.
        if slot.purpose == EVALUATION.purpose:
            return then
        made = SignedSet(start_of(slot.purpose, slot.history), slot.digest(), scope, slot.round)
        return replace(then, signed=(*self.signed, made)[-KEPT_SETS:])

    def with_answer(self, slot: Slot) -> Journal:
        """Return the journal with a note that this node's shares for a set of `slot` may leave."""
        of = slot.digest()
        told = tuple(replace(s, answered=True) if s.slot == of else s for s in self.signed)
        return replace(self, signed=told) if told != self.signed else self

    def gave_up(self, slot: Slot) -> Journal:
        """Return the journal with a slot given up for signing and answering, by a last claim.

        Raises ReuseError: this node has answered for the slot, or no longer knows whether it has;
        NoKeyError: the epoch is not, or not yet, this federation's.
        """
        mark, of = (slot.round, slot.attempt, VOID), slot.digest()
        if any(each.slot == of and each.answered for each in self.signed):
            raise ReuseError(
                f"a set of round {slot.round} was opened here in part: it cannot be given up"
            )
        if len(self.signed) == KEPT_SETS and slot.round <= self.signed[0].round:
            raise ReuseError(f"the answers of round {slot.round} are no longer recorded here")
        if slot.epoch in self.past:
            return self  # its keys are erased
        self.check_epoch(slot.epoch)
        if self.mark >= mark:
            return self  # a later claim decides which set may be signed
        same = mark[:2] == self.mark[:2]
        return replace(self, mark=mark, note=self.note if same else Note(history=slot.history))


def start_of(purpose: str, history: bytes) -> bytes:
    """Return SHA-256 of a slot's purpose and history, 32 bytes; one set is signed for each."""
    return sha256(dumps([purpose, history])).digest()


Change = Callable[[Journal], Journal]


class Book:
    """The journal at `name` in a state directory, together with its witness.

    Raises NoKeyError if there is no journal or it does not match its witness; `read`, `note` and
    `close` do not.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def read(self) -> Journal | None:
        """Return the journal on disk without checking its witness, or None."""
        if not self._store.exists(self._name):
            return None
        return Journal.from_bytes(self._store.read(self._name))

    def known(self) -> Journal:
        """As `read`, but NoKeyError without one."""
        if (found := self.read()) is None:
            raise NoKeyError(
                "the record of this federation's claims is missing: agree on a new epoch"
            )
        return found

    def enter(self, change: Change = lambda same: same) -> Journal:
        """Replace the journal by `change(journal)`, on disk and in its witness; return it."""
        found = made = self.known()

        def act(kept: bytes) -> bytes:
            nonlocal made
            now = self.known()  # again: from here on no other process changes it
            self._store.witness.check(kept, now.entry, now.before)
            made = change(now)
            if made != now:
                # `before` is the witnessed entry; a crash may have left another one in between.
                made = replace(made, entry=_name(), before=kept)
                self._write(made)
            return made.entry

        self._store.witness.follow(found.witness, act)
        return made

    def begin(self, change: Change) -> None:
        """As `enter`, but give an unusable journal a new witness.

        Its rounds stay over, and the keys of its epoch stay unused.
        """
        try:
            self.enter(change)
        except NoKeyError:
            found = (self.read() or Journal(_name(), _name())).ended()
            made = change(replace(found, witness=_name(), entry=_name(), before=b""))
            self._write(made)
            self._store.witness.follow(made.witness, lambda _: made.entry, new=True)

    def note(self, change: Change) -> bool:
        """As `enter`, but change an unusable journal too; return whether it is usable."""
        try:
            self.enter(change)
        except NoKeyError:
            if (found := self.read()) is not None:
                self._write(change(found))
            return False
        return True

    def close(self) -> None:
        """End the use of its keys for good; finished rounds stay recorded."""
        found = self.read()
        if found is None or not (found.epoch or found.agreement):
            return
        if self.note(lambda now: replace(now.ended(), agreement=b"")):
            self._store.witness.forget(found.witness)

    def _write(self, journal: Journal) -> None:
        self._store.write(self._name, journal.to_bytes())


def _name() -> bytes:
    return secrets.token_bytes(16)

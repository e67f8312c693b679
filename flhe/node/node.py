"""Node: one site's side of one federation, with everything that is on its disk.

runs/<id>/agreement   state of an unfinished key agreement (secret, erased when done)
runs/<id>/announced   hash of the terms that an agreement is for
runs/<id>/session     epoch id and terms
runs/<id>/floor       rounds that are over, in whatever epoch
runs/<id>/model       the global model, up to the last opened round
runs/<id>/outbox      the last encrypted update, for sending again
runs/<id>/ranges      the last encrypted mean squares, likewise
runs/<id>/draft       an update whose round is not over (secret)
runs/<id>/shares      shares of the last update's seed, and the own one (secret)
runs/<id>/survivors   the set that was signed last, and the sum of its shares (secret)
runs/<id>/residual    what sparse updates have not sent yet (secret)
runs/<id>/encrypted   Flower's run of that id resumes an encrypted federation
errors.log            what was answered with a code only

The id is the federation's: the run id of Flower's run that began it. A run that resumes it has another.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import (
    ClaimedError,
    DriftError,
    NoKeyError,
    PolicyError,
    ProtocolError,
    ReuseError,
    StoreError,
)
from flhe.keys.agreement import epoch, masking
from flhe.keys.identity import Identity
from flhe.node import federations
from flhe.node.high_water_marks import Floor
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.node.stored import StoredAgreement, StoredNote, StoredOutput, StoredSession
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.draft import Draft
from flhe.training.mean_squares import RANGES
from flhe.training.model import Model
from flhe.training.session import SUM, Session
from flhe.training.terms import Terms
from flhe.wire.files import boot_id, make_private
from flhe.wire.frame import frame, unframe

Agreement = epoch.Advertised | epoch.Shared | epoch.Confirmed
Step = Literal["ranges", "supports", "update", "consist"]
STEPS: tuple[Step, ...] = ("ranges", "supports", "update", "consist")
"""What leaves a node in one attempt at a round, in order; each is claimed once."""

_SEEDS = ("shares", "survivors")
"""What belongs to the seeds of one epoch."""
_SECRETS = ("draft", "residual", "outbox", "ranges", *_SEEDS)
"""What is destroyed when a node leaves."""

UPDATE, CONSIST = STEPS.index("update"), STEPS.index("consist")

Output = Literal["outbox", "ranges"]
MAX_LOG = 1 << 20
"""Bytes of errors.log; when it is full it starts anew."""

A = TypeVar("A", epoch.Advertised, epoch.Shared, epoch.Confirmed)
_STEPS: dict[str, type[Agreement]] = {
    "advertised": epoch.Advertised,
    "shared": epoch.Shared,
    "confirmed": epoch.Confirmed,
}


def open_store(policy: Policy) -> Store:
    """The state directory of `policy`; where its place was not configured, every level is private.

    Raises
    ------
    StoreError
        A level that somebody else made, or that others may look into.
    """
    if policy.root is not None:
        policy.root.parent.mkdir(parents=True, exist_ok=True)
        levels = policy.home.relative_to(policy.root).parts
        for depth in range(len(levels)):
            make_private(policy.root.joinpath(*levels[:depth]))
    return Store(policy.home, boot="" if policy.durable else boot_id())


@dataclass(frozen=True, slots=True)
class Node:
    """A site within one run.

    Parameters
    ----------
    policy : Policy
        What it allows.
    store : Store
        Its state directory, locked by whoever handles a message.
    identity : Identity
        Its Ed25519 key.
    run_id : int
        The federation's id.
    """

    policy: Policy
    store: Store
    identity: Identity = field(repr=False)
    run_id: int

    def _name(self, name: str) -> str:
        return f"runs/{self.run_id}/{name}"

    # --- key agreement ---

    def check_begun(self, *, begin: bool = False) -> None:
        """Refuse to exceed `max_federations` (FederationsError); `begin` notes this one, on disk."""
        federations.check(self.store, self.run_id, self.policy.max_federations, begin=begin)

    def save_agreement(self, state: Agreement) -> None:
        """Keep the state of an agreement for the next message, which another process may get."""
        step = next(name for name, kind in _STEPS.items() if type(state) is kind)
        self.drop_agreement()  # overwrites the secrets of the step before
        self.store.write(self._name("stamp"), b"")
        stamp = self.store.stamp(self._name("stamp")) or ""
        kept = StoredAgreement(step, stamp, self.store.boot, state.to_bytes())
        self.store.write(self._name("agreement"), kept.to_bytes())

    def load_agreement(self, kind: type[A]) -> A:
        """Read it back.

        Raises
        ------
        ProtocolError
            No agreement is under way, or it stands at another step.
        """
        step, data = self._agreement()
        if _STEPS.get(step) is not kind:
            raise ProtocolError("no key agreement stands at this step here: start over")
        return kind.from_bytes(data, identity=self.identity)

    def agreement_confirmed(self) -> bool:
        """Whether an agreement waits for everyone's confirmation."""
        return self._agreement()[0] == "confirmed"

    def _agreement(self) -> tuple[str, bytes]:
        name = self._name("agreement")
        if not self.store.exists(name):
            return "", b""
        kept = StoredAgreement.from_bytes(self.store.read(name))
        # Two would become one member, or one would end the same agreement a second time.
        if kept.stamp != self.store.stamp(self._name("stamp")):
            raise NoKeyError("this state directory was copied or restored: start over")
        if self.store.boot and kept.boot != self.store.boot:
            raise NoKeyError("this machine has started anew since: start over")
        return kept.step, kept.state

    def announce(self, terms: bytes) -> None:
        """Note which terms a key agreement is for; replaces those of the one before."""
        self.store.write(self._name("announced"), hashlib.sha256(terms).digest())

    def check_announced(self, terms: bytes) -> None:
        """Refuse to begin an epoch under other terms than its agreement began with; ProtocolError.

        They would be this federation's for good, and the honest ones refused from then on.
        """
        name = self._name("announced")
        told = self.store.read(name) if self.store.exists(name) else b""
        if told != hashlib.sha256(terms).digest():
            raise ProtocolError(
                "these are not the terms that the key was agreed on for: start over"
            )

    def drop_agreement(self) -> None:
        """Erase an agreement's secrets."""
        self.store.erase(self._name("agreement"))
        self.store.erase(self._name("stamp"))

    # --- session ---

    def start_session(self, agreed: epoch.Epoch, terms: Terms) -> None:
        """Make `agreed` the epoch of this federation; the keys of the one before are destroyed.

        What was opened stays opened: a round has one sum, in whatever epoch. May be called again for
        the same epoch: after a crash half-way.
        """
        old = [epoch_id for epoch_id in self._epochs() if epoch_id != agreed.id]
        model = self.load_model()
        self._raise_floor(old, masked=terms.masked)
        floor = self.floor()
        opened, ranged = max(floor.opened, 0 if model is None else model.round), floor.ranged
        if self.store.has_epoch(agreed.id, agreed.to_bytes()):
            self.store.raise_opened(agreed.id, opened, ranged)
        else:
            self.store.put_epoch(agreed.to_bytes(), agreed.id, opened=opened, ranged=ranged)
        body = StoredSession(agreed.id, terms.to_bytes())
        self.store.write(self._name("session"), body.to_bytes())
        for epoch_id in old:
            self.store.erase_epoch(epoch_id)
        for name in _SEEDS if old else ():
            self.store.erase(self._name(name))  # of an epoch that is over

    def floor(self) -> Floor:
        """Rounds that are over here, in whatever epoch."""
        name = self._name("floor")
        return Floor.from_bytes(self.store.read(name)) if self.store.exists(name) else Floor()

    def _raise_floor(self, epochs: Iterable[bytes], *, masked: bool) -> None:
        """Keep what is over in `epochs`, before their marks go with their keys."""
        marks = Floor()
        for epoch_id in epochs:
            opened = self.store.opened(epoch_id)
            if masked:
                opened = max(opened, self._signed_in(epoch_id))
            here = Floor(opened, self.store.ranged(epoch_id), self._claimed_in(epoch_id))
            marks = marks.raised(here)
        self._keep_floor(marks)

    def _keep_floor(self, marks: Floor) -> None:
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

    def erase_keys(self) -> None:
        """Destroy the scheme's own keys of every epoch so far; what was opened stays opened.

        Their group key stays until the next epoch begins: the model is sealed under it.
        """
        for epoch_id in self._epochs():
            try:
                agreed = epoch.Epoch.from_bytes(self.store.peek_epoch(epoch_id))
            except (ProtocolError, NoKeyError):
                self._raise_floor([epoch_id], masked=True)
                self.store.erase_epoch(epoch_id)
                continue
            if agreed.scheme_secret:
                bare = replace(agreed, scheme_secret=b"")
                self.store.replace_epoch(epoch_id, bare.to_bytes())

    def current_epoch(self) -> bytes | None:
        """Id of this run's epoch, or None before there is one."""
        kept = self._session()
        return None if kept is None else kept[0]

    def usable_epoch(self) -> bytes | None:
        """Id of this federation's epoch if its keys may be used here and now."""
        kept = self._session()
        if kept is None or not self.store.usable(kept[0]):
            return None
        current, terms = kept
        pinned = self.policy.roster
        try:
            agreed = epoch.Epoch.from_bytes(self.store.get_epoch(current))
        except (ProtocolError, NoKeyError):
            return None
        if Terms.from_bytes(terms).joint and not agreed.scheme_secret:
            return None  # erased, for another epoch that never began
        return current if pinned is None or pinned.hash == agreed.roster.hash else None

    def encrypted_before(self) -> bool:
        """Whether this run has ever spoken of encryption here: then it may not become a plain one."""
        return any(self.store.exists(self._name(n)) for n in ("agreement", "session", "encrypted"))

    def mark_encrypted(self, run_id: int) -> None:
        """Note that Flower's run `run_id` speaks of encryption, where it resumes a federation."""
        name = f"runs/{run_id}/encrypted"
        if run_id != self.run_id and not self.store.exists(name):
            self.store.write(name, b"")

    def _epochs(self) -> list[bytes]:
        """This federation's epochs that have keys here; after a crash there may be more than one.

        A file that cannot be read (of another version, or damaged) is this one's if its session names
        it: nobody else's may keep this federation from going on.
        """
        current, found = self.current_epoch(), []
        for epoch_id in self.store.epochs():
            try:
                own = epoch.Epoch.from_bytes(self.store.peek_epoch(epoch_id)).run_id == self.run_id
            except (ProtocolError, StoreError) as error:
                log_failure(self.store, "keys", error)
                own = epoch_id == current
            if own:
                found.append(epoch_id)
        return found

    def _session(self) -> tuple[bytes, bytes] | None:
        """Epoch and terms; None before there are any, and where they are damaged."""
        if not self.store.exists(self._name("session")):
            return None
        try:
            return self._read_session()
        except ProtocolError as error:  # as good as none: the group agrees anew
            log_failure(self.store, "session", error)
            return None

    def _read_session(self) -> tuple[bytes, bytes]:
        kept = StoredSession.from_bytes(self.store.read(self._name("session")))
        return kept.epoch, kept.terms

    def load_session(self) -> tuple[epoch.Epoch, Terms]:
        """Epoch and terms of this run.

        Raises
        ------
        NoKeyError
            No key was agreed on, or not under the roster that is pinned now.
        """
        kept = self._session()
        if kept is None:
            raise NoKeyError("this node has agreed on no key in this federation")
        epoch_id, terms = kept
        agreed = epoch.Epoch.from_bytes(self.store.get_epoch(epoch_id))
        if agreed.run_id != self.run_id:
            raise ProtocolError("the stored epoch belongs to another federation")
        pinned = self.policy.roster
        if pinned is not None and pinned.hash != agreed.roster.hash:
            raise NoKeyError("another roster is pinned here than this key was agreed under")
        return agreed, Terms.from_bytes(terms)

    def check_terms(self, announced: bytes) -> None:
        """Refuse terms that changed under way: also for an epoch that is yet to begin."""
        kept = self._session()
        if kept is not None and kept[1] != announced:
            raise PolicyError("the server changed the terms of a running federation")

    def leave(self) -> None:
        """Give up this federation: its keys and updates are destroyed, the model stays."""
        self.drop_agreement()
        epochs = self._epochs()
        self._raise_floor(epochs, masked=True)
        for epoch_id in epochs:
            self.store.erase_epoch(epoch_id)
        for name in _SECRETS:
            self.store.erase(self._name(name))

    # --- model ---

    def load_model(self) -> Model | None:
        """The model that is on disk; None before the first message, and for one that is damaged."""
        name = self._name("model")
        if not self.store.exists(name):
            return None
        try:
            return Model.from_bytes(self.store.read(name))
        except ProtocolError as error:  # as good as none: the others have it
            log_failure(self.store, "model", error)
            return None

    def save_model(self, model: Model) -> None:
        """Replace the model on disk, whole or not at all."""
        self.store.write_chunks(self._name("model"), model.chunks())

    # --- rounds ---

    def claim(
        self,
        session: Session,
        round_: int,
        attempt: int,
        digest: bytes,
        history: bytes,
        *,
        step: Step = "update",
        support: bytes = b"",
        mode: str = "",
    ) -> None:
        """Claim the one use of a mask, on disk, before anything is encrypted.

        `digest` and `history` are of the model that the update starts from; they, the digest of the
        support that the server was told and the mode that it announced are kept with the claim.

        Raises
        ------
        ReuseError
            This step or a later one was claimed before; the round's survivors were signed.
        """
        if session.terms.masked:
            self.check_unsigned(session.epoch.id, round_)
        note = StoredNote(digest, support, mode, history).to_bytes()
        self.store.claim(session.epoch.id, round_, attempt, note, STEPS.index(step))

    def claimed(self, slot: Slot) -> bytes | None:
        """Digest of the model that a claimed attempt started from; None if it is not the last one."""
        note = self._note(slot)
        return None if note is None else note.digest

    def told_support(self, slot: Slot) -> bytes | None:
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

    # --- whose seeds are added up ---

    def save_dealt(self, dealt: masking.Dealt) -> None:
        """Keep the shares of the update that is about to be sent; the last one's are erased."""
        for name in ("shares", "survivors"):
            self.store.erase(self._name(name))
        self.store.write(self._name("shares"), dealt.to_bytes())

    def load_dealt(self) -> masking.Dealt | None:
        """The shares of the last update, if there are any."""
        name = self._name("shares")
        return masking.Dealt.from_bytes(self.store.read(name)) if self.store.exists(name) else None

    def load_survivors(self) -> masking.Agreed | None:
        """The set that was signed last, if there is one."""
        name = self._name("survivors")
        return masking.Agreed.from_bytes(self.store.read(name)) if self.store.exists(name) else None

    def save_survivors(self, agreed: masking.Agreed) -> None:
        """Keep the set that is about to be signed."""
        self.store.write(self._name("survivors"), agreed.to_bytes())

    def claim_set(self, slot: Slot, digest: bytes, write: Callable[[], None]) -> None:
        """Make a set the one set of survivors of its round, on disk, before anybody hears of it.

        `digest` is that of the set, `write` keeps what answering for it takes. May be called again for
        the same one.

        Raises
        ------
        ReuseError
            Another set was signed in this round, or another attempt was encrypted since.
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

    def _signed_in(self, epoch_id: bytes) -> int:
        """Last round of an epoch whose survivors may have been signed, and its sum be known.

        Of the rounds before the last one nothing is kept any more, so they count as signed.
        """
        try:
            round_, _, step = self.store.last_claim(epoch_id)
        except NoKeyError:
            return self.store.claimed_round(epoch_id)
        return round_ if step == CONSIST else max(round_ - 1, 0)

    def tried(self, slot: Slot) -> bool:
        """Whether `slot`'s round is the last one that was claimed, in whatever attempt."""
        return self.store.last_claim(slot.epoch)[0] == slot.round

    def record_opening(self, session: Session, round_: int, digest: bytes, what: str = SUM) -> None:
        """Record the one sum of a round, on disk, before it is decrypted; mean squares likewise."""
        record = self.store.record_ranges if what == RANGES else self.store.record_opening
        record(session.epoch.id, round_, digest)

    def skip_openings(self, epoch_id: bytes, round_: int) -> None:
        """A model of `round_` was taken from another member: no sum up to there is opened here."""
        self.store.raise_opened(epoch_id, round_, round_)
        self._keep_floor(Floor(round_, round_))

    def save_output(self, sealed: Sealed, envelope: bytes, name: Output = "outbox") -> None:
        """Keep a ciphertext: if it is asked for again, these are the bytes that are sent."""
        head = frame(StoredOutput(sealed.header(), envelope))
        self.store.write_chunks(self._name(name), [memoryview(head), *sealed.body()])

    def load_output(self, slot: Slot, name: Output = "outbox") -> tuple[Sealed, bytes] | None:
        """The kept ciphertext of this very slot, or None."""
        if self.claimed(slot) is None or not self.store.exists(self._name(name)):
            return None
        sealed, envelope = self._output(name)
        return (sealed, envelope) if sealed.slot == slot else None

    def _output(self, name: Output) -> tuple[Sealed, bytes]:
        data = self.store.read(self._name(name))
        kept, start = unframe(StoredOutput, data)
        body = np.frombuffer(data, np.uint8, offset=start)
        return Sealed.from_parts(kept.header, body), kept.envelope

    def check_mask(self, mask: Support | None) -> None:
        """Refuse another selection than updates were encrypted under here; DriftError.

        What the other one leaves in clear was encrypted before: both together would show everything.
        """
        name = self._name("mask")
        if mask is not None and self.store.exists(name) and self.store.read(name) != mask.digest():
            raise DriftError("another selection than this node has sent updates under")

    def bind_mask(self, mask: Support | None) -> None:
        """Make a selection this federation's one, on disk, before an update is encrypted under it."""
        self.check_mask(mask)
        name = self._name("mask")
        if mask is not None and not self.store.exists(name):
            self.store.write(name, mask.digest())

    def count_release(self) -> None:
        """Count one more update with noise, on disk, before anything is trained for it.

        Raises
        ------
        PolicyError
            There were as many as this node's policy allows.
        """
        name = self._name("releases")
        before = int.from_bytes(self.store.read(name), "big") if self.store.exists(name) else 0
        most = self.policy.max_releases
        if most and before >= most:
            raise PolicyError(
                f"updates with noise left this node {before} times, its policy allows {most}: each one "
                "tells more of the data; raise flhe-max-releases in the node config"
            )
        self.store.write(name, (before + 1).to_bytes(8, "big"))

    def note_missed(self, round_: int) -> None:
        """Keep that this node's update was left out of a round's sum: its receipts say so."""
        self.store.write(self._name("missed"), round_.to_bytes(4, "big"))

    def missed(self) -> int:
        """Last round whose sum lacked this node's update, 0 if none did."""
        name = self._name("missed")
        return int.from_bytes(self.store.read(name), "big") if self.store.exists(name) else 0

    # --- what is not sent yet ---

    def save_draft(self, draft: Draft) -> None:
        """Keep an update until its round is over."""
        self.store.write_chunks(self._name("draft"), draft.chunks())

    def load_draft(self) -> Draft | None:
        """The update whose round is not over, if there is one."""
        name = self._name("draft")
        return Draft.from_bytes(self.store.read(name)) if self.store.exists(name) else None

    def residual(self) -> NDArray[np.float32] | None:
        """What sparse updates have not sent so far, shape (floats,); None before the first."""
        name = self._name("residual")
        return Draft.from_bytes(self.store.read(name)).residual if self.store.exists(name) else None

    def settle_draft(self, round_: int, *, sent: bool) -> None:
        """A round is over: what its update did not send stays for later, all of it if it is not `sent`.

        The residual is a function of the draft alone, so after a crash this may be done again.
        """
        draft = self.load_draft()
        if draft is None or draft.round > round_:
            return
        if sent and draft.round == round_ and draft.residual is not None:
            self.store.move(self._name("draft"), self._name("residual"))
            return
        if draft.residual is not None:
            self.store.write_chunks(self._name("residual"), draft.given_back().chunks())
        self.store.erase(self._name("draft"))

    def make_room(self, epoch_id: bytes, draft: Draft | None, round_: int, attempt: int) -> None:
        """Before an attempt trains in the place of a draft: what it could not claim, it need not train.

        The round of the draft that goes is closed: were its sum opened yet, nothing would tell what of
        that draft was in it.

        Raises
        ------
        ClaimedError
            This attempt or a later one was claimed before.
        """
        self.check_unclaimed(epoch_id, round_, attempt)
        if draft is not None and draft.round < round_:
            self.skip_openings(epoch_id, draft.round)

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
        uploaded = self.store.exists(self._name("outbox"))
        if uploaded and self._output("outbox")[0].slot.round == draft.round:
            self.settle_draft(draft.round, sent=True)
        else:
            self.drop_draft()


def log_failure(store: Store, stage: str, error: BaseException) -> None:
    """Append a failure to the node's own errors.log: the only place that gets the details."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{when} {stage[:16]!r}\n{''.join(traceback.format_exception(error))}\n"
    store.append("errors.log", text.encode(errors="backslashreplace"), limit=MAX_LOG)

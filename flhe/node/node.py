"""Node: one site's side of one federation, with all its files on disk.

epochs/<epoch id>                   an epoch's keys, of one of the federations
runs/<id>/agreement                 state of an unfinished key agreement (secret, erased when done)
runs/<id>/session                   epoch id and contract
runs/<id>/encrypted                 Flower's run of that id resumes an encrypted federation
runs/<id>/model                     the global model, up to the last opened round
runs/<id>/outbox                    the last encrypted update, for sending again
runs/<id>/{mean-squares,evaluation} the last ones that were encrypted, likewise
runs/<id>/mask                      hash of the selection that updates are encrypted under
runs/<id>/releases                  how many updates with noise have left
runs/<id>/draft                     an update whose round is not over (secret)
runs/<id>/residual                  what sparse updates have not sent yet (secret)

Paths contain the id of Flower's run that began the federation. A run that resumes it has another
id. `claims` lists the files with usage marks in the same folder.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, TypeVar

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
from flhe.keys.agreement import epoch
from flhe.node import federations, witness
from flhe.node.audit import log_failure
from flhe.node.claims import SEEDS, Claims
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes import PLAIN
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.contract import MAX_BYTES, Contract
from flhe.training.draft import Draft
from flhe.training.kind import EVALUATION, MEAN_SQUARES
from flhe.training.model import Model
from flhe.training.terms import Terms
from flhe.wire.fields import size
from flhe.wire.files import make_private
from flhe.wire.record import Form, Record, frame, unframe

Agreement = epoch.Advertised | epoch.Shared | epoch.Confirmed
A = TypeVar("A", epoch.Advertised, epoch.Shared, epoch.Confirmed)
MAX_STORED = 64 << 20
"""Maximum size of an agreement's state in bytes."""
OUTBOX = "outbox"
_OUTPUTS = {kind.purpose: kind.purpose for kind in (MEAN_SQUARES, EVALUATION)}
"""Files with the last ciphertext of these purposes; all others are in the outbox."""
EPOCHS = "epochs/*"
"""Key files of all federations."""
_SECRETS = ("draft", "residual", OUTBOX, *_OUTPUTS, *SEEDS)
"""Files that are destroyed when a node leaves."""


@dataclass(frozen=True, slots=True)
class StoredAgreement(Record):
    """A key agreement under way: the class of its state, its contract, and the state."""

    FORM = Form(
        "stored agreement",
        MAX_STORED,
        version=4,
        row=True,
        damaged=NoKeyError("a stored agreement is damaged, or of another version: start over"),
    )

    step: str
    contract: Contract
    state: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredSession(Record):
    """Epoch and signed contract of a federation."""

    FORM = Form("stored session", 2 * MAX_BYTES, version=2)

    epoch: Annotated[bytes, size(16)]
    contract: Contract


@dataclass(frozen=True, slots=True)
class StoredOutput(Record):
    """Header of a kept ciphertext."""

    FORM = Form("stored update", MAX_BYTES, row=True)

    header: bytes
    envelope: bytes


def open_store(policy: Policy) -> Store:
    """Return the state directory of `policy`; in a default place, make every level private.

    Raises StoreError: another user may access a level; ConfigError: its witness would be on the
    same disk.
    """
    if policy.root is not None:
        policy.root.parent.mkdir(parents=True, exist_ok=True)
        levels = policy.home.relative_to(policy.root).parts
        for depth in range(len(levels)):
            make_private(policy.root.joinpath(*levels[:depth]))
    store = Store(policy.home)
    store.witness = witness.find(policy.witness, policy.home, durable=policy.durable)
    return store


class Node(Claims):
    """A site within one run; for its parameters see `Claims`."""

    __slots__ = ()

    # --- key agreement ---

    def check_begun(self, *, begin: bool = False) -> None:
        """Refuse to exceed `max_federations` (FederationsError); `begin` notes this one, on disk."""
        federations.check(self.store, self.run_id, self.policy.max_federations, begin=begin)

    def save_agreement(self, state: Agreement, contract: Contract) -> None:
        """Keep an agreement's state and contract for the next message."""
        self.drop_agreement()  # overwrites the secrets of the previous step
        data = StoredAgreement(type(state).__name__, contract, state.to_bytes()).to_bytes()
        # A first step needs no earlier state, so it renews a directory that was rolled back.
        enter = self.book.begin if type(state) is epoch.Advertised else self.book.enter
        enter(lambda now: replace(now, agreement=sha256(data).digest()))
        self.store.write(self._name("agreement"), data)

    def load_agreement(self, kind: type[A]) -> tuple[A, Contract]:
        """Return the stored state and contract; ProtocolError if there is none, or at another step."""
        kept = self._agreement()
        if kept is None or kept.step != kind.__name__:
            raise ProtocolError("no key agreement is at this step here: start over")
        state = kind.from_bytes(kept.state)
        if state.identity != self.identity.public:
            raise ProtocolError("the stored agreement belongs to another identity: start over")
        return state, kept.contract

    def agreement_confirmed(self) -> bool:
        """True if an agreement waits for the confirmations of all members."""
        kept = self._agreement()
        return kept is not None and kept.step == epoch.Confirmed.__name__

    def _agreement(self) -> StoredAgreement | None:
        data = self._kept("agreement", bytes)
        if data is None:
            return None
        # Two copies would become one member, or one would finish the same agreement twice.
        if self.book.enter().agreement != sha256(data).digest():
            raise NoKeyError("this is not the last key agreement that was begun here: start over")
        return StoredAgreement.from_bytes(data)

    def drop_agreement(self) -> None:
        """Erase an agreement's secrets."""
        self.store.erase(self._name("agreement"))

    # --- epochs ---

    def start_session(self, agreed: epoch.Epoch, contract: Contract) -> None:
        """Make `agreed` the epoch of this federation; destroy the keys of the previous one.

        Openings stay recorded. Repeating it for the same epoch is safe, as after a crash in
        between.
        """
        keys, data = _key_file(agreed.id), agreed.to_bytes()
        old = [name for name in self._epochs() if name != keys]
        model = self.load_model()
        over = 0 if model is None else model.round
        if self.store.exists(keys) and not hmac.compare_digest(self.store.read(keys), data):
            raise ReuseError("this epoch was stored before: agree on a new one")
        self.store.write(keys, data)
        self.store.write(self._name("session"), StoredSession(agreed.id, contract).to_bytes())
        self.book.enter(lambda now: now.begun(agreed.id, over))
        seeds = map(self._name, SEEDS if old else ())  # of a finished epoch
        for name in (*old, *seeds):
            self.store.erase(name)

    def erase_keys(self) -> None:
        """Destroy the scheme's own keys of all epochs so far; other keys seal the model."""
        for name in self._epochs():
            try:
                agreed = self._keys(name)
            except NoKeyError:
                self.store.erase(name)
                continue
            if agreed.scheme_secret:
                bare = replace(agreed, scheme_secret=b"")
                self.store.replace_erasing(name, bare.to_bytes())

    def usable_epoch(self) -> bytes | None:
        """Return the id of this federation's epoch if its keys are usable now, else None."""
        try:
            agreed, contract = self.load_session()
            used = self.book.enter().epoch == agreed.id
        except (NoKeyError, ProtocolError):
            return None
        # Erased for another epoch that never began.
        bare = contract.terms.scheme.needs_all_members and not agreed.scheme_secret
        return agreed.id if used and not bare else None

    def _keys(self, name: str) -> epoch.Epoch:
        """Return an epoch's keys; NoKeyError if they are missing or unreadable."""
        if not self.store.exists(name):
            raise NoKeyError(
                "the keys of this epoch are not in the state directory: agree on new ones"
            )
        try:
            return epoch.Epoch.from_bytes(self.store.read(name))
        except ProtocolError:
            raise NoKeyError(
                "a key file is damaged, or of another version: agree on a new epoch"
            ) from None

    def _epochs(self) -> list[str]:
        """Return the key files of this federation's epochs; after a crash there may be several.

        An unreadable file counts only if this federation's session names it.
        """
        session, found = self.session(), []
        for name in self.store.names(EPOCHS):
            try:
                own = self._keys(name).run_id == self.run_id
            except StoreError as error:
                log_failure(self.store, "keys", error)
                own = session is not None and name == _key_file(session.epoch)
            if own:
                found.append(name)
        return found

    def session(self) -> StoredSession | None:
        """Return epoch and contract; None if missing or damaged."""
        return self._sound("session", lambda data: StoredSession.from_bytes(bytes(data)))

    def load_session(self) -> tuple[epoch.Epoch, Contract]:
        """Return epoch and contract of this run; NoKeyError if the pinned roster has none."""
        kept = self.session()
        if kept is None:
            raise NoKeyError("this node has agreed on no key in this federation")
        agreed = self._keys(_key_file(kept.epoch))
        if agreed.run_id != self.run_id:
            raise ProtocolError("the stored epoch belongs to another federation")
        pinned = self.policy.roster
        if pinned is not None and pinned.hash != agreed.roster.hash:
            raise NoKeyError("the pinned roster is not the one that this key was agreed under")
        return agreed, kept.contract

    def check_terms(self, terms: Terms) -> None:
        """Refuse changed terms: an epoch may have another contract, but not other terms."""
        kept = self.session()
        if kept is not None and kept.contract.terms != terms:
            raise PolicyError("the server changed the terms of a running federation")

    def encrypted_before(self) -> bool:
        """Return whether this run was ever encrypted here, so may not become a plain one."""
        return any(self.store.exists(self._name(n)) for n in ("agreement", "session", "encrypted"))

    def mark_encrypted(self, run_id: int) -> None:
        """Note that Flower's run `run_id`, which may resume a federation, is encrypted."""
        name = f"runs/{run_id}/encrypted"
        plain = PLAIN in self.policy.schemes  # otherwise no run is a plain one
        if plain and run_id != self.run_id and not self.store.exists(name):
            self.store.write(name, b"")

    def leave(self) -> None:
        """Leave this federation: destroy its keys and updates, keep the model."""
        self.drop_agreement()
        for name in (*self._epochs(), *map(self._name, _SECRETS)):
            self.store.erase(name)
        with suppress(StoreError):  # a damaged one has no keys either, now
            self.book.close()

    # --- the model ---

    def load_model(self) -> Model | None:
        """Return the model on disk; None before the first message, or if it is damaged."""
        return self._sound("model", Model.from_bytes)

    def save_model(self, model: Model) -> None:
        """Replace the model on disk atomically."""
        self.store.write(self._name("model"), model.chunks())

    # --- what was sent ---

    def save_output(self, sealed: Sealed, envelope: bytes) -> None:
        """Keep a ciphertext, so that a repeated request gets the same bytes."""
        head = frame(StoredOutput(sealed.header(), envelope))
        name = self._name(_OUTPUTS.get(sealed.slot.purpose, OUTBOX))
        self.store.write(name, [memoryview(head), *sealed.body()])

    def load_output(self, slot: Slot) -> tuple[Sealed, bytes] | None:
        """Return the kept ciphertext of this slot, or None."""
        if self.claimed(slot) is None:
            return None
        output = self._sound(_OUTPUTS.get(slot.purpose, OUTBOX), _output)
        return output if output is not None and output[0].slot == slot else None

    def last_sent(self) -> int:
        """Round of the last update that was encrypted here, or 0.

        If the kept one is damaged, that of the last claim: its update may have been sent.
        """
        output = self._sound(OUTBOX, _output)
        if output is not None:
            return output[0].slot.round
        journal = self.book.read() if self.store.exists(self._name(OUTBOX)) else None
        return 0 if journal is None else journal.mark[0]

    def check_unevaluated(self, round_: int) -> None:
        """Refuse to evaluate a second model of a round, in any epoch; ClaimedError.

        If the last evaluation is damaged, all rounds count as evaluated that may be.
        """
        last = self._sound(EVALUATION.purpose, _output)
        done = -1 if last is None else last[0].slot.round
        if last is None and self.store.exists(self._name(EVALUATION.purpose)):
            journal = self.book.known()
            claimed, attempt, _ = journal.mark
            done = max(journal.reached, claimed - (attempt != EVALUATION.attempt))
        if round_ <= done:
            raise ClaimedError(f"a model of round {round_} or a later one was evaluated here")

    def check_mask(self, mask: Support | None, *, keep: bool = False) -> None:
        """Refuse another selection than before, which would reveal encrypted values; DriftError.

        With `keep`, record the first one before an update is encrypted under it.
        """
        kept = self._kept("mask", bytes)
        if mask is not None and kept not in (None, mask.digest()):
            raise DriftError("this node's updates used another selection until now")
        if mask is not None and kept is None and keep:
            self.store.write(self._name("mask"), mask.digest())

    def count_release(self) -> None:
        """Count one more update with noise, on disk, before training; PolicyError beyond the limit."""
        before = int.from_bytes(self._kept("releases", bytes) or b"", "big")
        most = int(self.policy.limits["max-releases"])
        if most and before >= most:
            raise PolicyError(
                f"a node may send {most} updates with noise by its policy, this one has sent "
                f"{before}: each one reveals more of the data; raise flhe-max-releases in the "
                "node config"
            )
        self.store.write(self._name("releases"), (before + 1).to_bytes(8, "big"))

    # --- values not sent yet ---

    def save_draft(self, draft: Draft) -> None:
        """Keep an update until its round is over."""
        self.store.write(self._name("draft"), draft.chunks())

    def load_draft(self) -> Draft | None:
        """Return the update whose round is not over, or None."""
        return self._kept("draft", Draft.from_bytes)

    def residual(self) -> NDArray[np.float32] | None:
        """Residual of sparse updates so far, shape (floats,); None before the first."""
        rest = self._rest()
        return None if rest is None else rest.residual

    def _rest(self) -> Draft | None:
        return self._kept("residual", Draft.from_bytes)

    def settle_draft(self, round_: int, *, sent: bool, contract: bytes = b"") -> None:
        """End a round: the update's unsent values move to the residual, all of them unless `sent`.

        `contract` is the one that the round's senders trained under. A draft from another contract,
        or for a round without a sum, is dropped: its values would enter a later sum alone. The
        residual depends on the draft only, so repeating this after a crash is safe.
        """
        draft = self.load_draft()
        if draft is None or draft.round > round_:
            return
        of_it = draft.round == round_ and draft.residual is not None
        if of_it and sent:
            self.store.move(self._name("draft"), self._name("residual"))
            return
        if of_it and draft.contract == contract:
            self.store.write(self._name("residual"), draft.given_back().chunks())
        self.store.erase(self._name("draft"))

    def skip_draft(self, model: Model, counted: int, contract: bytes) -> None:
        """End the rounds up to that of a model that was taken from another member.

        `counted` is the last one, not opened here, whose sum has this node's update, or 0;
        `contract` as for `settle_draft`. A draft from a model that the others did not have is
        dropped.
        """
        draft, rest = self.load_draft(), self._rest()
        ahead = follows = False
        if draft is not None:
            start = draft.round, draft.history
            ahead = draft.round > model.round and (draft.history, draft.base) == (
                model.history,
                model.fingerprint(),
            )
            follows = ahead or start in ((link.round, link.before) for link in model.chain)
        known = (one for one in (draft if follows else None, rest) if one is not None)
        # What was given back has no values: of a round that was counted, nothing may be given back.
        if counted and not any(
            one.round > counted or (one.round == counted and one.values.size) for one in known
        ):
            # Its sum holds the residual as well. What it left unsent is not known any more.
            self.store.erase(self._name("residual"))
        if draft is None or ahead:
            return
        if follows:
            self.settle_draft(draft.round, sent=draft.round == counted, contract=contract)
        self.store.erase(self._name("draft"))


def _key_file(epoch_id: bytes) -> str:
    return f"epochs/{epoch_id.hex()}"


def _output(data: memoryview) -> tuple[Sealed, bytes]:
    """Return a kept ciphertext and its envelope."""
    kept, start = unframe(StoredOutput, data)
    return Sealed.from_parts(
        kept.header, np.frombuffer(data, np.uint8, offset=start)
    ), kept.envelope

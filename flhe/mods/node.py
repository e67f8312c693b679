"""Node: one site's side of one run, with everything that is on its disk.

runs/<run id>/agreement   state of an unfinished key agreement (secret, erased when done)
runs/<run id>/session     epoch id and terms
runs/<run id>/model       the global model, up to the last opened round
runs/<run id>/outbox      the last encrypted update, for sending again
errors.log                what was answered with a code only
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from flhe.errors import PolicyError, ProtocolError, StoreError
from flhe.keys import canonical, epoch
from flhe.keys.files import make_private
from flhe.keys.identity import Identity
from flhe.keys.store import Store
from flhe.policy import Policy
from flhe.rounds.model import Model
from flhe.rounds.session import Session
from flhe.rounds.terms import MAX_BYTES, Terms
from flhe.sealed import Sealed, Slot

Agreement = epoch.Advertised | epoch.Shared | epoch.Confirmed
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
    return Store(policy.home)


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
        Flower's run id.
    """

    policy: Policy
    store: Store
    identity: Identity = field(repr=False)
    run_id: int

    def _name(self, name: str) -> str:
        return f"runs/{self.run_id}/{name}"

    # --- key agreement ---

    def save_agreement(self, state: Agreement) -> None:
        """Keep the state of an agreement for the next message, which another process may get."""
        step = next(name for name, kind in _STEPS.items() if type(state) is kind)
        self.drop_agreement()  # overwrites the secrets of the step before
        self.store.write(self._name("stamp"), b"")
        body = [step, self.store.stamp(self._name("stamp")) or "", state.to_bytes()]
        self.store.write(self._name("agreement"), canonical.dumps(body))

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
        return kind.from_bytes(data, self.identity)

    def agreement_confirmed(self) -> bool:
        """Whether an agreement waits for everyone's confirmation."""
        return self._agreement()[0] == "confirmed"

    def _agreement(self) -> tuple[str, bytes]:
        name = self._name("agreement")
        if not self.store.exists(name):
            return "", b""
        match canonical.loads(self.store.read(name), 64 << 20, "stored agreement"):
            case [str(step), str(stamp), bytes(data)]:
                if stamp != self.store.stamp(self._name("stamp")):  # two would become one member
                    raise StoreError("this state directory was copied or restored: start over")
                return step, data
        raise ProtocolError("stored agreement: malformed")

    def drop_agreement(self) -> None:
        """Erase an agreement's secrets."""
        self.store.erase(self._name("agreement"))
        self.store.erase(self._name("stamp"))

    # --- session ---

    def start_session(self, agreed: epoch.Epoch, terms: Terms) -> None:
        """Make `agreed` the epoch of this run; the keys of the one before are destroyed.

        May be called again for the same epoch: after a crash half-way.
        """
        before = self.current_epoch()
        if not self.store.has_epoch(agreed.id, agreed.to_bytes()):
            self.store.put_epoch(agreed.to_bytes(), agreed.id)
        body = {"v": 1, "epoch": agreed.id, "terms": terms.to_bytes()}
        self.store.write(self._name("session"), canonical.dumps(body))
        if before not in (None, agreed.id):
            self.store.erase_epoch(before)

    def current_epoch(self) -> bytes | None:
        """Id of this run's epoch, or None before there is one."""
        if not self.store.exists(self._name("session")):
            return None
        return self._session()[0]

    def encrypted_before(self) -> bool:
        """Whether this run has ever spoken of encryption here: then it may not become a plain one."""
        return any(self.store.exists(self._name(n)) for n in ("agreement", "session"))

    def _session(self) -> tuple[bytes, bytes]:
        match canonical.loads(self.store.read(self._name("session")), MAX_BYTES, "stored session"):
            case {"v": 1, "epoch": bytes(epoch_id), "terms": bytes(terms)}:
                return epoch_id, terms
        raise ProtocolError("stored session: malformed, or of another version of flhe")

    def load_session(self) -> tuple[epoch.Epoch, Terms]:
        """Epoch and terms of this run.

        Raises
        ------
        ProtocolError
            No key was agreed on.
        """
        if not self.store.exists(self._name("session")):
            raise ProtocolError("this node has agreed on no key in this run")
        epoch_id, terms = self._session()
        agreed = epoch.Epoch.from_bytes(self.store.get_epoch(epoch_id))
        if agreed.run_id != self.run_id:
            raise ProtocolError("the stored epoch belongs to another run")
        pinned = self.policy.roster
        if pinned is not None and pinned.hash != agreed.roster.hash:
            raise PolicyError("another roster is pinned here than this run's key was agreed under")
        return agreed, Terms.from_bytes(terms)

    def check_terms(self, agreed: Terms, announced: bytes) -> None:
        """Refuse terms that changed under way."""
        if agreed.to_bytes() != announced:
            raise PolicyError("the server changed the terms of a running federation")

    # --- model ---

    def load_model(self) -> Model | None:
        """The model that is on disk, or None before the first message."""
        name = self._name("model")
        return Model.from_bytes(self.store.read(name)) if self.store.exists(name) else None

    def save_model(self, model: Model) -> None:
        """Replace the model on disk, whole or not at all."""
        self.store.write_chunks(self._name("model"), model.chunks())

    # --- rounds ---

    def claim(self, session: Session, round_: int, attempt: int) -> None:
        """Claim the one use of a mask, on disk, before anything is encrypted."""
        self.store.claim(session.epoch.id, round_, attempt)

    def record_opening(self, session: Session, round_: int, digest: bytes) -> None:
        """Record the one sum of a round, on disk, before it is decrypted."""
        self.store.record_opening(session.epoch.id, round_, digest)

    def save_output(self, sealed: Sealed, envelope: bytes) -> None:
        """Keep an encrypted update: if it is asked for again, these are the bytes that are sent."""
        head = canonical.dumps([sealed.header(), envelope])
        size = len(head).to_bytes(4, "big")
        chunks = [memoryview(size + head), sealed.data.data]
        self.store.write_chunks(self._name("outbox"), chunks)

    def load_output(self, slot: Slot) -> tuple[Sealed, bytes] | None:
        """The kept update of this very slot, or None."""
        name = self._name("outbox")
        if not self.store.exists(name):
            return None
        data = self.store.read(name)
        start = 4 + int.from_bytes(data[:4], "big")
        match canonical.loads(data[4:start], MAX_BYTES, "stored update"):
            case [bytes(header), bytes(envelope)]:
                body = np.frombuffer(data, np.uint8, offset=start)
                sealed = Sealed.from_parts(header, body)
            case _:
                raise ProtocolError("stored update: malformed")
        return (sealed, envelope) if sealed.slot == slot else None


def log_failure(store: Store, stage: str, error: BaseException) -> None:
    """Append a failure to the node's own errors.log: the only place that gets the details."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{when} {stage[:16]!r}\n{''.join(traceback.format_exception(error))}\n"
    store.append("errors.log", text.encode(errors="backslashreplace"), limit=MAX_LOG)

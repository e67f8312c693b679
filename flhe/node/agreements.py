"""Agreements: a key agreement under way, from one message to the next.

runs/<id>/agreement   its state (secret, erased when done)
runs/<id>/announced   hash of the terms that it is for
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

from flhe.errors import NoKeyError, ProtocolError
from flhe.keys.agreement import epoch
from flhe.node import federations
from flhe.node.folder import Folder
from flhe.node.stored import StoredAgreement

Agreement = epoch.Advertised | epoch.Shared | epoch.Confirmed
A = TypeVar("A", epoch.Advertised, epoch.Shared, epoch.Confirmed)
_STEPS: dict[str, type[Agreement]] = {
    "advertised": epoch.Advertised,
    "shared": epoch.Shared,
    "confirmed": epoch.Confirmed,
}


class Agreements(Folder):
    """What a node keeps of a key agreement."""

    __slots__ = ()

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
        data = self._kept("agreement")
        if data is None:
            return "", b""
        kept = StoredAgreement.from_bytes(data)
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
        if self._kept("announced") != hashlib.sha256(terms).digest():
            raise ProtocolError(
                "these are not the terms that the key was agreed on for: start over"
            )

    def drop_agreement(self) -> None:
        """Erase an agreement's secrets."""
        self.store.erase(self._name("agreement"))
        self.store.erase(self._name("stamp"))

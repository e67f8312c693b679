"""Epochs: the keys and terms of a federation, one epoch after the other.

runs/<id>/session     epoch id and terms
"""

from __future__ import annotations

from dataclasses import replace

from flhe.errors import NoKeyError, PolicyError, ProtocolError, StoreError
from flhe.keys.agreement import epoch
from flhe.node.claims import SEEDS
from flhe.node.folder import log_failure
from flhe.node.stored import StoredSession
from flhe.node.updates import Updates
from flhe.training.terms import Terms


class Epochs(Updates):
    """What a node has agreed on."""

    __slots__ = ()

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
        for name in SEEDS if old else ():
            self.store.erase(self._name(name))  # of an epoch that is over

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
        data = self._kept("session")
        if data is None:
            return None
        try:
            kept = StoredSession.from_bytes(data)
        except ProtocolError as error:  # as good as none: the group agrees anew
            log_failure(self.store, "session", error)
            return None
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

"""Budget: total privacy loss of this site's updates over all runs, against the site's limit.

The ledger counts an update on disk before it is encrypted, whether its sum is later opened, lost or
sent again. So a server that asks twice, restarts or renames its run is charged each time. The
ledger's last entry has a witness outside the volume (`witness.py`), under a name derived from the
site's identity. A ledger that was rolled back or removed is detected and permits nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flhe.coding.base import Mechanism
from flhe.errors import BudgetError
from flhe.node.ledger import LEDGER, Counts, Ledger, witness_name
from flhe.node.store import Store
from flhe.node.witness import Witness
from flhe.schemes.limit import Value
from flhe.training import accountant

_WITNESS = "set flhe-witness in the node config to a directory on another disk, or in memory"


@dataclass(frozen=True, slots=True)
class Budget:
    """A site's budget: `epsilon` at `delta`, 0 for no limit; `public` is the site's public key."""

    store: Store
    public: bytes
    epsilon: float
    delta: float

    @classmethod
    def of(cls, store: Store, public: bytes, limits: Mapping[str, Value]) -> Budget:
        """Return the budget under a site's limits."""
        return cls(store, public, float(limits["max-epsilon"]), float(limits["delta"]))

    def ledger(self) -> Ledger:
        """Return the ledger on disk without checking its witness; an empty one if there is none."""
        if not self.store.exists(LEDGER):
            return Ledger()
        return Ledger.from_bytes(self.store.read(LEDGER))

    def check(self, mechanism: Mechanism, updates: int = 1) -> None:
        """Refuse `updates` more updates under `mechanism` if they exceed the budget; BudgetError."""
        if self.epsilon:
            self._enter(lambda counts: self._with(counts, mechanism, updates), keep=False)

    def spend(self, mechanism: Mechanism) -> None:
        """Charge one update, on disk; BudgetError if the budget does not allow it."""
        self._enter(lambda counts: self._with(counts, mechanism, 1))

    def confirm(self) -> None:
        """Trust the ledger on disk where no witness is left, on its administrator's word.

        A missing ledger is empty. BudgetError: there is a witness, and it is of another ledger.
        """
        self._enter(lambda counts: counts, trust=True)

    def check_kept(self) -> None:
        """Refuse a ledger that was rolled back or has no witness; BudgetError. No file is made."""

        def act(kept: bytes) -> bytes:
            refusal = self._refusal(kept, self.ledger())
            if refusal is not None and self.epsilon:
                raise refusal
            return kept

        # Not durable: a durable witness would make its file.
        Witness(self.store.witness.place).follow(witness_name(self.public), act)

    def _with(self, counts: Counts, mechanism: Mechanism, more: int) -> Counts:
        after = counts + Counter({mechanism: more})
        if not self.epsilon:
            return after
        total = accountant.epsilon(after, self.delta)
        if total > self.epsilon:
            spent = accountant.shown(accountant.epsilon(counts, self.delta))
            raise BudgetError(
                f"this site's privacy budget is epsilon {self.epsilon:g} at delta {self.delta:g}, of "
                f"which {spent} is spent; {more} more with noise multiplier "
                f"{mechanism.multiplier:g} and sampling rate {mechanism.sampling:g} would make it "
                f"{accountant.shown(total)}: train fewer rounds or with more noise, or raise "
                "flhe-max-epsilon in the node config (and max-epsilon in the roster, where it is)"
            )
        return after

    def _enter(
        self, change: Callable[[Counts], Counts], *, keep: bool = True, trust: bool = False
    ) -> None:
        """Check the ledger against its witness, then replace its counts by `change(counts)`."""

        def act(kept: bytes) -> bytes:
            now = self.ledger()
            refusal = None if trust and not kept else self._refusal(kept, now)
            if refusal is not None and (self.epsilon or trust):
                raise refusal
            counts = change(now.counts)
            if not keep:
                return kept
            # Without a limit a site goes on and counts, but a limit that is set later still refuses.
            made = Ledger.of(counts, kept)
            if refusal:
                made = replace(made, entry=now.entry, before=now.before)
            # On disk first: after a crash in between the ledger is one entry ahead, which is taken.
            self.store.write(LEDGER, made.to_bytes())
            return kept if refusal else made.entry

        with self.store.lock(name="lock-privacy"):  # a witness in memory excludes no other process
            self.store.witness.follow(witness_name(self.public), act, new=True)

    def _refusal(self, kept: bytes, now: Ledger) -> BudgetError | None:
        """Return the error for a ledger that does not match the witness `kept`, or None."""
        if kept:
            if kept in (now.entry, now.before):
                return None
            return BudgetError(
                "the record of this site's privacy budget was rolled back or taken away: what has left "
                "since is not in it. Put the right one back, or begin with a new identity"
            )
        if now.entry and self.store.witness.durable:
            return None
        if not now.entry:
            return BudgetError(
                "this site has no record of its privacy budget, as after its keys were restored from a "
                "backup: if nothing has left, begin one with `flhe budget --confirm`"
            )
        return BudgetError(
            "nothing outside the state directory's disk confirms the record of this site's privacy "
            "budget, as after a restart of the machine: look at it, and confirm it with "
            f"`flhe budget --confirm`; so that this is not asked again, {_WITNESS}"
        )

"""Budget: what this site's updates give away in all, over every run, against the site's own limit.

An update is paid for on disk before it is encrypted. Whether it is opened, lost or sent again makes no
difference, so a server that asks twice, starts anew or renames its run pays each time. The ledger's
last entry has a witness outside the volume (`witness.py`), under a name that only the site's identity
decides: a ledger that was put back, or taken away, is noticed and allows nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from flhe.coding.base import Mechanism
from flhe.errors import BudgetError
from flhe.node.ledger import LEDGER, Counts, Ledger, witness_name
from flhe.node.store import Store
from flhe.training import accountant

_WITNESS = "set flhe-witness in the node config to a directory on another disk, or in memory"


@dataclass(frozen=True, slots=True)
class Budget:
    """A site's budget: `epsilon` at `delta`, 0 for no limit; `public` is the site's own key."""

    store: Store
    public: bytes
    epsilon: float
    delta: float

    def ledger(self) -> Ledger:
        """The ledger as it is on disk, whatever its witness says; an empty one where there is none."""
        if not self.store.exists(LEDGER):
            return Ledger()
        return Ledger.from_bytes(self.store.read(LEDGER))

    def check(self, mechanism: Mechanism, updates: int = 1) -> None:
        """Refuse so many further updates with that noise where they would exceed it; BudgetError."""
        if self.epsilon:
            self._enter(lambda counts: self._with(counts, mechanism, updates), keep=False)

    def spend(self, mechanism: Mechanism) -> None:
        """Pay for one update, on disk; BudgetError where the budget does not allow it."""
        self._enter(lambda counts: self._with(counts, mechanism, 1))

    def confirm(self) -> None:
        """Trust the ledger that is on disk, as its administrator says; none is an empty one."""
        self._enter(lambda counts: counts, trust=True)

    def check_kept(self) -> None:
        """Refuse a ledger that nothing confirms, or that was put back; BudgetError."""
        self._enter(lambda counts: counts, keep=False)

    def _with(self, counts: Counts, mechanism: Mechanism, more: int) -> Counts:
        after = counts + Counter({mechanism: more})
        if not self.epsilon:
            return after
        total = accountant.epsilon(after, self.delta)
        if total > self.epsilon:
            spent = accountant.epsilon(counts, self.delta)
            raise BudgetError(
                f"this site's privacy budget is epsilon {self.epsilon:g} at delta {self.delta:g}, of "
                f"which {spent:.3g} is spent; {more} more with noise multiplier "
                f"{mechanism.multiplier:g} and sampling rate {mechanism.sampling:g} would make it "
                f"{total:.3g}: train fewer rounds or with more noise, or raise flhe-max-epsilon in the "
                "node config (and max-epsilon in the roster, where it is)"
            )
        return after

    def _enter(
        self, change: Callable[[Counts], Counts], *, keep: bool = True, trust: bool = False
    ) -> None:
        """Check the ledger against its witness, and replace it by what `change` makes of its counts."""

        def act(kept: bytes) -> bytes:
            now = self.ledger()
            refusal = None if trust else self._refusal(kept, now)
            if refusal is not None and self.epsilon:
                raise refusal
            counts = change(now.counts)
            if not keep:
                return kept
            # Without a limit a site goes on and counts, but a limit that is set later still refuses.
            made = Ledger.of(counts, now.entry if refusal else kept)
            # On disk first: after a crash in between the ledger is one entry ahead, which is taken.
            self.store.write(LEDGER, made.to_bytes())
            return kept if refusal else made.entry

        with self.store.lock(name="lock-privacy"):  # a witness in memory excludes no other process
            self.store.witness.follow(witness_name(self.public), act, new=True)

    def _refusal(self, kept: bytes, now: Ledger) -> BudgetError | None:
        """Why a ledger is not taken, whose last entry is witnessed as `kept`; None for a sound one."""
        if kept:
            if kept in (now.entry, now.before):
                return None
            return BudgetError(
                "the record of this site's privacy budget was put back or taken away: what has left "
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

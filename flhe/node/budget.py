"""Budget: what this site's updates give away in all, over every run, against the site's own limit.

privacy   how many updates left with which noise, in whatever federation, epoch and attempt

An update is paid for on disk before it is encrypted. Whether it is opened, lost or sent again makes no
difference, so a server that asks twice, starts anew or renames its run pays each time. The ledger's
last entry has a witness outside the volume (`witness.py`), under a name that only the site's identity
decides: a ledger that was put back, or taken away, is noticed and allows nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from flhe.coding.base import Mechanism
from flhe.errors import BudgetError, StoreError
from flhe.node.store import Store
from flhe.training import accountant
from flhe.wire.derive import PREFIX
from flhe.wire.fields import U32, at_most, size
from flhe.wire.record import Form, Record

LEDGER = "privacy"
MAX_KINDS = 1024
_WITNESS = "set flhe-witness in the node config to a directory on another disk, or in memory"


@dataclass(frozen=True, slots=True)
class Ledger(Record):
    """Updates by (noise multiplier, sampling rate); `entry` and `before` as in a journal."""

    FORM = Form(
        "privacy budget",
        1 << 16,
        version=1,
        row=True,
        damaged=StoreError("the record of this site's privacy budget is damaged: see flhe budget"),
    )

    entry: Annotated[bytes, size(0, 16)] = b""
    before: Annotated[bytes, size(0, 16)] = b""
    releases: Annotated[
        tuple[tuple[float, float, U32], ...], at_most(MAX_KINDS, "kinds of noise")
    ] = ()

    @property
    def counts(self) -> Counter[Mechanism]:
        """How many updates with each noise."""
        return Counter({Mechanism(z, q): count for z, q, count in self.releases})

    @classmethod
    def of(cls, counts: Counter[Mechanism], before: bytes) -> Ledger:
        """A new entry with these counts, after the one that is witnessed."""
        rows = tuple((*mechanism, count) for mechanism, count in sorted(counts.items()))
        return cls(secrets.token_bytes(16), before, rows)


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

    def _with(
        self, counts: Counter[Mechanism], mechanism: Mechanism, more: int
    ) -> Counter[Mechanism]:
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
        self,
        change: Callable[[Counter[Mechanism]], Counter[Mechanism]],
        *,
        keep: bool = True,
        trust: bool = False,
    ) -> None:
        """Check the ledger against its witness, and replace it by what `change` makes of its counts."""
        witness = self.store.witness

        def act(kept: bytes) -> bytes:
            now = self.ledger()
            if self.epsilon and not trust:
                self._check_witness(kept, now)
            counts = change(now.counts)
            if not keep:
                return kept
            # On disk first: after a crash in between the ledger is one entry ahead, which is taken.
            made = Ledger.of(counts, kept)
            self.store.write(LEDGER, made.to_bytes())
            return made.entry

        name = hashlib.sha256(PREFIX.encode() + b"privacy budget" + self.public).digest()[:16]
        witness.follow(name, act, new=True)

    def _check_witness(self, kept: bytes, now: Ledger) -> None:
        if kept:
            if kept not in (now.entry, now.before):
                raise BudgetError(
                    "the record of this site's privacy budget was put back or taken away: what has "
                    "left since is not in it. Put the right one back, or begin with a new identity"
                )
        elif now.entry and not self.store.witness.durable:
            raise BudgetError(
                "nothing outside the state directory's disk confirms the record of this site's "
                "privacy budget, as after a restart of the machine: look at it, and confirm it with "
                f"`flhe budget --confirm`; so that this is not asked again, {_WITNESS}"
            )

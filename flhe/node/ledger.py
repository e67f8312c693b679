"""Ledger: number of a site's updates by noise, and the witness of its last entry.

A site's first identity creates an empty ledger. So a missing ledger was removed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from flhe.coding.base import Mechanism
from flhe.errors import StoreError
from flhe.wire.derive import PREFIX
from flhe.wire.fields import U32, at_most, size
from flhe.wire.record import Form, Record

if TYPE_CHECKING:
    from flhe.node.store import Store

LEDGER = "privacy"
MAX_KINDS = 64

Counts = Counter[Mechanism]


@dataclass(frozen=True, slots=True)
class Ledger(Record):
    """Updates by (noise multiplier, sampling rate, of members); `entry`, `before` as in a journal."""

    FORM = Form(
        "privacy budget",
        1 << 16,
        version=2,
        row=True,
        damaged=StoreError(
            "the record of this site's privacy budget is damaged: put its file back as it was last "
            f"(`{LEDGER}` in the state directory), or begin with a new identity"
        ),
    )

    entry: Annotated[bytes, size(0, 16)] = b""
    before: Annotated[bytes, size(0, 16)] = b""
    releases: Annotated[
        tuple[tuple[float, float, bool, U32], ...], at_most(MAX_KINDS, "kinds of noise")
    ] = ()

    @property
    def counts(self) -> Counts:
        """Number of updates by noise."""
        return Counter({Mechanism(z, q, unit): count for z, q, unit, count in self.releases})

    @classmethod
    def of(cls, counts: Counts, before: bytes) -> Ledger:
        """Return a new entry with these counts, after the witnessed one."""
        rows = tuple((*mechanism, count) for mechanism, count in sorted(_few(counts).items()))
        return cls(secrets.token_bytes(16), before, rows)


def _few(counts: Counts) -> Counts:
    """Return at most as many kinds as a ledger holds: merge the two rarest under the weaker noise."""
    counts = Counter(counts)
    while len(counts) > MAX_KINDS:
        (one, two), more = zip(*counts.most_common()[-2:], strict=True)
        del counts[one], counts[two]
        unit = one.of_members and two.of_members
        # Noise of members counts half where a record is what is hidden.
        least = min(m.multiplier / (1 + (m.of_members and not unit)) for m in (one, two))
        counts[Mechanism(least, max(one.sampling, two.sampling), unit)] += sum(more)
    return counts


def witness_name(public: bytes) -> bytes:
    """Name of the witness of the ledger of the site with this public key, 16 bytes."""
    return hashlib.sha256(PREFIX.encode() + b"privacy budget" + public).digest()[:16]


def begin(store: Store, public: bytes) -> None:
    """Write the empty ledger of a new identity."""

    def act(_: bytes) -> bytes:
        made = Ledger.of(Counter(), b"")
        store.write(LEDGER, made.to_bytes())
        return made.entry

    store.witness.follow(witness_name(public), act, new=True)

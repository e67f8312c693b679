"""EpochSums: the sums of one epoch, from facts that members and server share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from flhe.coding.flatten import Layout
from flhe.coding.support import Support
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Slot
from flhe.schemes.selective import Selective
from flhe.sums.secure_sum import SecureSum
from flhe.training.kind import Kind
from flhe.training.terms import Terms
from flhe.wire.derive import hash_of


def bound_layout(label: str, layout_hash: bytes, digest: bytes) -> bytes:
    """Return a round's layout hash, bound to the `digest` of a model or of mean squares.

    A member that gives one node a different model could turn a sum into that node's update. So each
    encryption's slot binds the model. Nodes with different starting models derive different masks,
    seeds and `a`, and their parts do not add up.
    """
    return hash_of(label, layout_hash, digest)


@dataclass(frozen=True, slots=True)
class EpochSums:
    """Public facts of an epoch.

    Terms are resolved for this cohort. `run_id`, `roster_hash` and `epoch` are those of a `Slot`.
    `number` is the epoch's number, `cohort` its number of members, `public` the scheme's public
    key, if any.
    """

    terms: Terms
    layout: Layout
    run_id: int
    roster_hash: bytes
    epoch: bytes
    number: int
    contract: bytes
    cohort: int
    public: bytes
    whole: Adder = field(init=False)
    """Adder of whole vectors, and of all sums but updates."""
    adder: Adder = field(init=False)
    """Adder of an update, or of its selected part."""
    layout_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        terms = self.terms.resolved(self.cohort)
        whole = terms.for_cohort(self.cohort, self.public)
        adder = terms.selective(whole, self.layout)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "whole", whole)
        object.__setattr__(self, "adder", adder)
        object.__setattr__(self, "layout_hash", terms.layout_hash(self.layout, adder))

    def slot(self, round_: int, attempt: int, *more: bytes | str) -> Slot:
        """Return a slot of the epoch; `more` as in a `Slot`: layout hash, history, purpose."""
        return Slot(self.run_id, self.roster_hash, self.epoch, round_, attempt, *more)  # type: ignore[arg-type]

    def masking_slot(self, round_: int) -> Slot:
        """Return the slot of a round's seeds if members agree on masking keys only.

        Every round has a start of its own, so members sign one survivor set in each.
        """
        history = hash_of("masking-key", round_)
        return self.slot(round_, 0, self.layout_hash, history, "masking-key")

    def sum(
        self,
        kind: Kind,
        round_: int,
        attempt: int,
        history: bytes,
        start: bytes,
        fitted_on: bytes = b"",
        mask: Support | None = None,
    ) -> SecureSum:
        """Return the sum of one attempt at a round.

        `history` identifies the starting model and `start` is its keyed digest, as reported by
        members. `fitted_on` is the digest of the mean squares for fitted thresholds, if any; `mask`
        the selected part, if there is one and this side knows it.
        """
        terms, layout = self.terms, self.layout
        layout_hash = bound_layout("start", self.layout_hash, start)
        if fitted_on:
            layout_hash = bound_layout("ranged", layout_hash, fitted_on)
        slot = self.slot(round_, attempt, layout_hash, history, kind.purpose)
        sparse = kind.partial and terms.codec.sparse
        selected = kind.partial and terms.select.partial
        adder = self.adder if selected else self.whole
        if selected and mask is not None:
            adder = replace(cast(Selective, adder), mask=mask)
        values = terms.select.count(layout) if selected else layout.floats
        if sparse or not kind.valued:
            values = 0
        return SecureSum(
            slot=slot,
            adder=adder,
            number=self.number,
            policy_hash=self.contract,
            length=values + kind.extras(terms, layout) + terms.tag_lanes,
            values=layout.floats if kind.valued else 0,
            bits=terms.bits,
            sparse=sparse,
            tagged=terms.tagged,
            floats=layout.floats,
        )

"""What the terms come to in an epoch: its scheme, lengths of vectors, slots of rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flhe.coding.flatten import Layout
from flhe.keys.agreement.circle import SharingParameters
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Slot, from_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.training.start import Start, fitted_layout, mean_squares_layout
from flhe.training.terms import Terms


@dataclass(slots=True)
class EpochParameters:
    """Public parameters of the ledger's epoch and round, derived when cohort or layout change."""

    ledger: Ledger
    terms: Terms
    _for: tuple[object, ...] = field(default=(), init=False)
    _resolved: Terms = field(init=False)
    _whole: Adder = field(init=False)
    _adder: Adder = field(init=False)
    _layout_hash: bytes = field(default=b"", init=False)

    @property
    def epoch(self) -> Agreed:
        """The epoch that members agreed on; there is one before any round."""
        assert self.ledger.agreed is not None
        return self.ledger.agreed

    @property
    def layout(self) -> Layout:
        """Layout of the model; there is one before any round."""
        assert self.ledger.layout is not None
        return self.ledger.layout

    @property
    def whole(self) -> Adder:
        """The adder of whole vectors, and of all that is no update, for this epoch's cohort."""
        self._derive()
        return self._whole

    @property
    def adder(self) -> Adder:
        """The adder of the round under way."""
        self._derive()
        return self._whole if self.maps else self._adder

    @property
    def maps(self) -> bool:
        """Whether the round under way adds up the map that says what is selected."""
        return self.terms.select.mapped and self.ledger.base == 0

    @property
    def resolved(self) -> Terms:
        """The terms, for this epoch's cohort."""
        self._derive()
        return self._resolved

    @property
    def circle(self) -> SharingParameters:
        """Public parameters of this epoch's masking-key agreement.

        The bound on collusion is what members say of their roster, whose hash they have agreed on;
        members go by their own.
        """
        agreed = self.epoch
        members = tuple(sorted(agreed.members.values()))
        return SharingParameters(
            self.ledger.federation,
            agreed.number,
            agreed.roster_hash,
            members,
            agreed.colluders,
            self.terms.scheme.elements(len(members)),
        )

    def lanes(self) -> int:
        """Length of what each sender of the round under way adds, where it is not sparse."""
        return (self.resolved.map_lanes if self.maps else self.resolved.lanes)(self.layout)

    def slot(self, start: Start) -> Slot:
        """The slot of the round under way, for those who start there."""
        self._derive()
        ledger, agreed = self.ledger, self.epoch
        layout_hash = start.layout(self._layout_hash)
        if fitted_on := ledger.mean_squares.get(ledger.round):
            layout_hash = fitted_layout(layout_hash, from_bytes(fitted_on).digest())
        return Slot(
            ledger.federation,
            agreed.roster_hash,
            agreed.epoch,
            ledger.round,
            ledger.attempt,
            layout_hash,
            ledger.history,
        )

    def mean_squares_slot(self, start: Start) -> Slot:
        """The slot of the mean squares of the round under way, before their sum is known."""
        slot = self.slot(start)
        return replace(slot, layout_hash=mean_squares_layout(start.layout(self._layout_hash)))

    @property
    def needs_mean_squares(self) -> bool:
        """Whether the round under way begins with mean squares, which are yet to be added."""
        ledger, fitting = self.ledger, self.terms.codec.fitting
        first = len(ledger.chain) == (2 if self.terms.select.mapped else 1)
        due = (fitting == "always" and not self.maps) or (fitting == "first" and first)
        return due and ledger.round not in ledger.mean_squares

    def _derive(self) -> None:
        """Compute what depends on cohort and layout, once an epoch."""
        layout, agreed = self.layout, self.ledger.agreed
        cohort, public = (0, b"") if agreed is None else (len(agreed.members), agreed.public)
        key = (cohort, layout, public)
        if self._for != key:
            self._resolved = terms = self.terms.resolved(cohort)
            self._whole = terms.for_cohort(cohort, public)
            self._adder = terms.selective(self._whole, layout)
            self._layout_hash = terms.layout_hash(layout, self._adder)
            self._for = key

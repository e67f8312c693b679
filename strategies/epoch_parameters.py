"""Parameters of an epoch's sums, derived from the terms, as the server sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ConfigRecord

from flhe.coding.flatten import Layout
from flhe.errors import ProtocolError
from flhe.keys.agreement.circle import SharingParameters
from flhe.mods import records
from flhe.schemes.sealed import from_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.sums.secure_sum import SecureSum
from flhe.training.epoch_sums import EpochSums
from flhe.training.kind import Kind
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.terms import Terms
from flhe.training.update import UPDATE
from flhe.training.vouching import Holding


def start_in(answer: ConfigRecord) -> bytes:
    """Return the digest of a reply's starting model; the sum verifies it."""
    digest: bytes = records.field(answer, "digest", bytes)
    return digest


@dataclass(slots=True)
class EpochParameters:
    """Public parameters of the ledger's epoch and round."""

    ledger: Ledger
    terms: Terms
    _for: tuple[object, ...] = field(default=(), init=False)
    _sums: EpochSums = field(init=False)

    @property
    def epoch(self) -> Agreed:
        """The epoch that members agreed on; set before any round."""
        assert self.ledger.agreed is not None
        return self.ledger.agreed

    @property
    def layout(self) -> Layout:
        """Layout of the model; set before any round."""
        assert self.ledger.layout is not None
        return self.ledger.layout

    @property
    def sums(self) -> EpochSums:
        """The epoch's sums, derived once for each cohort and layout."""
        agreed, layout = self.epoch, self.layout
        key = (agreed.epoch, layout)
        if self._for != key:
            self._sums = EpochSums(
                self.terms,
                layout,
                self.ledger.federation,
                agreed.roster_hash,
                agreed.epoch,
                agreed.number,
                agreed.bound,
                len(agreed.members),
                agreed.public,
            )
            self._for = key
        return self._sums

    @property
    def maps(self) -> bool:
        """True if the current round adds up the map for the selection."""
        return self.terms.select.mapped and self.ledger.base == 0

    @property
    def ending(self) -> Kind:
        """Kind of sum that ends the current round."""
        return SENSITIVITY if self.maps else UPDATE

    @property
    def circle(self) -> SharingParameters:
        """Public parameters of this epoch's masking-key agreement.

        Members report their agreed roster's size and its bound on collusion; they use their own
        copy.
        """
        agreed = self.epoch
        members = agreed.publics
        return SharingParameters(
            agreed.number,
            members,
            agreed.sites,
            agreed.colluders,
            self.terms.scheme.elements(len(members)),
        )

    def sum(self, kind: Kind, start: bytes) -> SecureSum:
        """Return a sum of the current round, for senders with the starting model `start`."""
        ledger = self.ledger
        kept = ledger.mean_squares.get(ledger.round) if kind.valued else None
        fitted_on = from_bytes(kept).digest() if kept else b""
        at = ledger.round, ledger.attempt
        if kind.attempt is not None:
            at = ledger.base, kind.attempt
        return self.sums.sum(kind, *at, ledger.history, start, fitted_on)

    @property
    def needs_mean_squares(self) -> bool:
        """True if the current round begins with mean squares that are not added yet."""
        ledger, fitting = self.ledger, self.terms.codec.fitting
        first = len(ledger.chain) == (2 if self.terms.select.mapped else 1)
        due = (fitting == "always" and not self.maps) or (fitting == "first" and first)
        return due and ledger.round not in ledger.mean_squares

    def holding(self, digest: bytes) -> Holding:
        """Return the statement by which members vouch for the present model with this keyed digest."""
        ledger = self.ledger
        return Holding(self.sums, self.epoch.publics, ledger.base, ledger.history, digest)

    def shares_in(self, node: int, answer: ConfigRecord) -> list[bytes]:
        """Return the shares of a seed; ProtocolError unless there is one for each other member."""
        shares, rank = records.bytes_list(answer, "shares"), self.epoch.rank(node)
        if [len(share) for share in shares] != self.circle.sent_bytes(rank):
            raise ProtocolError(
                "expected one share of its seed for each other member with its update"
            )
        return shares

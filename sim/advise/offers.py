"""What `flhe advise` chooses among, and what a round of each asks of clients and server.

Bytes are those of ciphertexts and of the shares, signatures and keys that go with them, by the schemes'
own rules, without Flower's frame of a message and its signatures, a few hundred bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.thresholds import Thresholds
from flhe.schemes.base import Scheme
from flhe.schemes.registry import parse
from flhe.training.terms import Terms
from flhe_lab.advise.calibration import Calibration, Phases
from flhe_lab.advise.cost_model import TERMS, sealed_bytes, sparse_bytes
from flhe_lab.advise.demand import Demand
from flhe_lab.advise.round_model import Exchange, Work
from flhe_lab.advise.toml_files import load_toml
from flhe_lab.tables import phase_costs as who

SIGNATURE = 64
SEALING = 28
"""Nonce and tag of an answer that is sealed for the members."""
PLAIN_BYTES = 4
"""Of a value in clear."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to run a federation."""

    name: str  # As the table has it
    measured: str  # Whose measured phases are its own, of `phase_costs.WHO`
    terms: Terms  # As its preset makes them, but for metrics, which take a few values
    strategy: str  # How to write it down: an expression that makes these terms
    caveat: str = ""  # What to know before it is chosen; "" where there is nothing beside the table

    @property
    def scheme(self) -> Scheme:
        """Its scheme."""
        return self.terms.scheme

    @property
    def server_reads(self) -> bool:
        """Whether the server reads the sum of each round."""
        return self.scheme.reader == "server"

    def min_senders(self, demand: Demand) -> int:
        """Fewest updates in a sum that is opened."""
        if self.scheme.per_sum_keys:
            return Thresholds(demand.clients, demand.bound).min_set
        return demand.bound + 2  # as a roster's `min_opening` has it


def _offer(scheme: str = "", **table: str) -> Offer:
    terms = TERMS[table["measured"]]
    return Offer(terms=replace(terms, scheme=parse(scheme) if scheme else terms.scheme), **table)


OFFERS: tuple[Offer, ...] = tuple(
    _offer(**table) for table in load_toml(Path(__file__).with_name("offers.toml"))["offer"]
)


def plain_work(demand: Demand, speed: Calibration) -> Work:
    """A round of FedAvg in clear."""
    phases = speed.phases(who.PLAIN, demand.values, demand.clients)
    nbytes = PLAIN_BYTES * demand.values
    # It has nothing to open: whoever adds divides, once.
    return Work(demand.train_s, phases.encrypt_s, 0.0, phases.add_s, nbytes, nbytes)


def work(offer: Offer, demand: Demand, speed: Calibration) -> tuple[Work, Phases]:
    """A round of `offer`, and its phases as they were measured.

    Raises FlheError: it cannot be run at this size.
    """
    phases = speed.phases(offer.measured, demand.values, demand.clients, demand.dropouts)
    senders = demand.clients - demand.dropouts
    if offer.terms.codec.sparse:
        return _sparse(offer, demand, phases, senders, speed), phases
    up = sealed_bytes(offer.terms, demand.values, demand.clients)
    down = sealed_bytes(offer.terms, demand.values, demand.clients, senders)
    whole = Work(demand.train_s, phases.encrypt_s, phases.decrypt_s, phases.add_s, up, down)
    if not offer.scheme.per_sum_keys:
        return whole, phases
    return _masked(offer, whole, demand, phases, speed), phases


def _sparse(offer: Offer, demand: Demand, phases: Phases, senders: int, speed: Calibration) -> Work:
    sizes = sparse_bytes(offer.terms, demand.values, demand.clients, senders)
    return Work(
        demand.train_s,
        phases.encrypt_s,
        phases.decrypt_s + senders * demand.values * speed.support_s,
        phases.add_s + demand.values * speed.support_s,
        sizes.part,
        sizes.total + senders * sizes.support,
        (Exchange("supports", sizes.support, 0, 0.0, 0.0),),
    )


def _masked(offer: Offer, whole: Work, demand: Demand, phases: Phases, speed: Calibration) -> Work:
    """With masking keys that all share with all."""
    members, senders = demand.clients, demand.clients - demand.dropouts
    elements = offer.scheme.elements(members)
    circle = SharingParameters(1, (bytes(32),) * members, members, demand.bound, elements)
    cost = speed.agreement(members, elements)
    signatures = circle.thresholds.threshold * SIGNATURE
    answer = circle.share_bytes + SIGNATURE
    reads = offer.server_reads
    opening = cost.combine_s + phases.decrypt_s if reads else 0.0
    dealt = sum(circle.sent_bytes(0))
    shares = min((senders - 1) * circle.box_bytes, dealt)
    consist = Exchange("consist", SIGNATURE, shares, cost.agree_s, 0.0)
    if not reads:
        answer += SEALING
    unmask = Exchange("unmask", answer, signatures, cost.release_s, opening)
    return replace(
        whole,
        encrypt_s=whole.encrypt_s + cost.deal_s,
        decrypt_s=0.0 if reads else whole.decrypt_s + cost.combine_s,
        upload_bytes=whole.upload_bytes + dealt,
        # What comes back is the model itself where the server reads; else the sum, and all answers.
        download_bytes=PLAIN_BYTES * demand.values
        if reads
        else whole.download_bytes + senders * answer,
        exchanges=(consist, unmask),
    )

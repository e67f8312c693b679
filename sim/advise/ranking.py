"""Which scheme for which federation: what each would take on this machine and that network, or why not.

Every offer is either ranked, by the seconds of a round that `round_model` plays, or excluded with all
its reasons. Seconds of cryptography are from this machine's calibration, on one thread, with nothing
computed ahead; every client, and the server, is taken to be such a machine. Nobody waits for who is
missing; a round that comes to nothing is run again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flhe_lab.advise.calibration import Calibration, Phases
from flhe_lab.advise.demand import Demand
from flhe_lab.advise.offers import OFFERS, plain_work, work
from flhe_lab.advise.prices import GB
from flhe_lab.advise.round_model import Breakdown, Work, simulate, typical
from flhe_lab.advise.rules import lost_rounds, reasons_against
from flhe_lab.papers.convergence import project
from flhe_lab.tables import phase_costs as who


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an offer takes."""

    name: str  # Of the offer
    strategy: str  # Of the offer
    caveat: str  # Of the offer
    encrypt_s: float  # Seconds of one client's encryption
    add_s: float  # Seconds of adding one upload
    decrypt_s: float  # Seconds of opening the sum, whoever does
    exchange_s: float  # Of one client, in whatever else it does for the scheme
    upload_bytes: int  # Of one client, all stages; as `round_s`, with what is done again
    download_bytes: int  # The same
    round_s: float
    """Seconds for each round that comes to a sum, training and all: on average, with the
    encryptions that are done again and the rounds that come to nothing."""
    round_gb: float  # All clients' traffic of a round, both ways, in GB of 2**30 bytes
    hours: float  # Until convergence
    usd: float  # Until convergence


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An offer that is none, and why: at least one reason."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer."""

    demand: Demand
    ranked: tuple[Prediction, ...]  # The fastest round first
    plain: Prediction  # FedAvg in clear, for comparison
    excluded: tuple[Exclusion, ...]  # All other offers

    def sentence(self) -> str:
        """What to do."""
        if not self.ranked:
            return "No scheme does all of this: see the reasons, and give up one of the demands."
        best, clear = self.ranked[0], self.plain
        said = (
            f"Take {best.name}, {best.strategy}: a round takes {best.round_s:.3g} s and moves "
            f"{best.round_gb:.3g} GB, {best.round_s / clear.round_s:.2f} and "
            f"{best.round_gb / clear.round_gb:.2f} times what it takes in clear"
        )
        if not best.caveat:
            return f"{said}."
        next_best = next((row for row in self.ranked if not row.caveat), None)
        instead = f" Else {next_best.name}: {next_best.round_s:.3g} s." if next_best else ""
        return f"{said}; {best.caveat}.{instead}"


def advise(demand: Demand, speed: Calibration) -> Advice:
    """Rank what does what is asked, and say of everything else why it does not."""
    ranked, excluded = [], []
    for offer in OFFERS:
        if reasons := reasons_against(offer, demand, speed):
            excluded.append(Exclusion(offer.name, reasons))
            continue
        # Where one is missing, members make new keys, and encrypt again.
        again = demand.lost(demand.clients) if offer.scheme.needs_all_members else 0.0
        lost, said = lost_rounds(offer, demand), (offer.name, offer.strategy, offer.caveat)
        ranked.append(_told(said, *work(offer, demand, speed), demand, again, lost))
    in_clear = plain_work(demand, speed)
    phases = speed.phases(who.PLAIN, demand.values, demand.clients)
    plain = _told(("plain FedAvg", "FedAvg()", ""), in_clear, phases, demand)
    return Advice(
        demand, tuple(sorted(ranked, key=lambda each: each.round_s)), plain, tuple(excluded)
    )


def _told(
    said: tuple[str, str, str],
    asked: Work,
    phases: Phases,
    demand: Demand,
    again: float = 0.0,
    lost: float = 0.0,
) -> Prediction:
    """Play a round of what `said` names, writes down and warns of.

    Of `again` of all rounds, encryption and upload are played a second time. Of `lost` all is in vain:
    for each that counts it takes 1 / (1 - lost).
    """
    one, tries = _played(asked, demand), 1 / (1 - lost)
    repeated = replace(asked, train_s=0.0, decrypt_s=0.0, download_bytes=0, exchanges=())
    second = _played(repeated, demand)
    one = replace(
        one,
        total_s=(one.total_s + again * second.total_s) * tries,
        bytes_up=round((one.bytes_up + again * second.bytes_up) * tries),
        bytes_down=round(one.bytes_down * tries),
    )
    end = project(one, demand.rounds, demand.prices, demand.wan, demand.clients)
    beside = asked.encrypt_s - phases.encrypt_s + max(asked.decrypt_s - phases.decrypt_s, 0.0)
    return Prediction(
        *said,
        phases.encrypt_s,
        phases.add_s,
        phases.decrypt_s,
        beside + sum(exchange.client_s for exchange in asked.exchanges),
        one.bytes_up,
        one.bytes_down,
        one.total_s,
        demand.clients * (one.bytes_up + one.bytes_down) / GB,
        end.hours,
        end.bill.total,
    )


def _played(asked: Work, demand: Demand) -> Breakdown:
    return typical(simulate(asked, demand.wan.links(demand.clients)))

"""What speaks against a scheme: every reason, in words that say what would mend it."""

from __future__ import annotations

from flhe.errors import FlheError
from flhe.packages import how_to
from flhe_lab.advise.calibration import Calibration
from flhe_lab.advise.demand import Demand
from flhe_lab.advise.offers import Offer, work

AGAIN = 0.1
"""Share of rounds that may come to nothing, or have all encrypt anew, before an offer is excluded."""

READS = "the server would read each sum, and with it the model: say --server-may-see-model"
CLEAR = "what it does not encrypt travels in clear: never chosen unless you say --clear-part"
SPARSE = (
    "it leaves out most values of an update; members see which ones each of them sends, and the "
    "server which of those coincide: never chosen unless you say --sparse"
)


def reasons_against(offer: Offer, demand: Demand, speed: Calibration) -> tuple[str, ...]:
    """Everything that speaks against an offer; empty where it may be chosen."""
    if lacking := offer.scheme.needs.missing():
        return (f"it needs {' and '.join(lacking)}, not installed here: {how_to(lacking[0])}",)
    if not speed.has(offer.measured):
        return ("it was not measured on this machine: --calibrate measures it",)
    try:  # what the terms themselves say against this size
        work(offer, demand, speed)
    except FlheError as error:
        return (str(error),)
    asked = (  # what somebody has to allow; whether an offer does it, and whether it is allowed
        (READS, offer.server_reads, demand.server_may_see_model),
        (CLEAR, bool(offer.terms.select.clear), demand.clear_part),
        (SPARSE, offer.terms.codec.sparse, demand.sparse),
    )
    found = (
        *(reason for reason, does, allowed in asked if does and not allowed),
        _collusion(offer, demand),
        _dropouts(offer, demand),
    )
    return tuple(reason for reason in found if reason)


def _collusion(offer: Offer, demand: Demand) -> str:
    if not demand.members_may_collude:
        return ""
    if offer.scheme.agreement in ("group", "key-pair"):
        return "members share a key: one that colludes with the server reads all others' updates"
    if not offer.scheme.needs_all_members:
        return ""
    return (
        "its keys last: a server that lies about who answered, with one member that kept old keys, "
        "reads any update, and one that does not lie reads an update that is only late; use keys of "
        "each round"
    )


def _dropouts(offer: Offer, demand: Demand) -> str:
    again = demand.lost(demand.clients)
    told = f"a dropout of {demand.dropout:g} with {demand.clients} clients means"
    if offer.scheme.needs_all_members and again > AGAIN:
        return (
            f"{told} a whole re-encryption in {again:.0%} of rounds, unless keys are of each round"
        )
    least = demand.bound + 3  # as a roster's `min_members` has it
    if offer.scheme.needs_all_members and again and demand.clients - 1 < least:
        return (
            f"{told} waiting in {again:.0%} of rounds: fewer than c + 3 are left, here {least}, and "
            "cannot agree on keys anew"
        )
    needed = offer.min_senders(demand)
    if (lost := lost_rounds(offer, demand)) > AGAIN:
        return (
            f"{told} no sum in {lost:.0%} of rounds: it opens those of {needed} updates or more, with "
            f"{demand.bound} that may collude"
        )
    return ""


def lost_rounds(offer: Offer, demand: Demand) -> float:
    """Chance that a round comes to nothing, and is run again."""
    return demand.lost(offer.min_senders(demand))

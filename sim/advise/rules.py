"""What speaks against a scheme: every reason, in words that say what would mend it."""

from __future__ import annotations

from flhe.errors import FlheError
from flhe.packages import how_to
from flhe_lab.advise.calibration import Calibration
from flhe_lab.advise.demand import Demand
from flhe_lab.advise.offers import Offer, work
from flhe_lab.advise.prices import GB

NODE_BYTES = 200 << 20
"""What a SuperNode holds, with the process that starts its clients, when idle."""

VALUE_BYTES = 40
"""What a working client holds for each value of the model, all copies together."""

AGAIN = 0.1
"""Share of rounds that may come to nothing, or have all encrypt anew, before an offer is excluded."""

READS = "the server would read each sum, and with it the model: say --server-may-see-model"
CLEAR = "what it does not encrypt travels in clear: never chosen unless you say --clear-part"
SPARSE = (
    "it leaves out most values of an update; members see which ones each of them sends, and the "
    "server which of those coincide: never chosen unless you say --sparse"
)
DEALT = "its keys are dealt by somebody whom all trust: say --trusted-dealer"


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
        (DEALT, offer.scheme.dealt, demand.trusted_dealer),
    )
    found = (
        *(reason for reason, does, allowed in asked if does and not allowed),
        _collusion(offer, demand),
        _dropouts(offer, demand),
        _memory(offer, demand, speed),
    )
    return tuple(reason for reason in found if reason)


def _collusion(offer: Offer, demand: Demand) -> str:
    if not demand.members_may_collude:
        return ""
    if offer.scheme.agreement in ("group", "key-pair"):
        return "members share a key: one that colludes with the server reads all others' updates"
    if not offer.agrees_anew:
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
        if offer.scheme.dealt:
            return f"{told} no sum in {again:.0%} of rounds: dealt keys open sums of all only"
        return (
            f"{told} a whole re-encryption in {again:.0%} of rounds, unless keys are of each round"
        )
    least = demand.bound + 3  # as a roster's `min_members` has it
    if offer.agrees_anew and again and demand.clients - 1 < least:
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
    if offer.scheme.dealt:
        return demand.lost(demand.clients)
    return demand.lost(offer.min_senders(demand))


def _memory(offer: Offer, demand: Demand, speed: Calibration) -> str:
    if not demand.memory_bytes:
        return ""
    asked, _ = work(offer, demand, speed)
    node = NODE_BYTES + VALUE_BYTES * demand.values + 2 * asked.upload_bytes
    # One sum, one reply and one checkpoint, and the sum that somebody lacks.
    server = NODE_BYTES + 2 * asked.upload_bytes + 2 * asked.download_bytes + 4 * demand.values
    for what, need in (("a client", node), ("the server", server)):
        if need > demand.memory_bytes:
            return (
                f"{what} needs about {need / GB:.1f} GB of memory, the machine has "
                f"{demand.memory_bytes / GB:.1f}: say --memory where yours have more"
            )
    return ""

"""What is due next: the rounds that may be asked for, and the sums that may be opened."""

from __future__ import annotations

from collections.abc import Callable

from flhe.errors import ProtocolError, QuorumError
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed, Slot, check_senders
from flhe.training.model import Model

Record = Callable[[int, bytes, str], None]
"""(round, digest of the sum, what of) -> None once on disk; ReuseError for another such sum.

What of: SUM of updates, or MEAN_SQUARES."""

SUM, MEAN_SQUARES = "sum", "mean-squares"

MAX_AHEAD = 32
"""Most rounds that may have come to nothing in between: each number that is claimed or recorded as
opened is one that no later round has."""


def check_ahead(model: Model, round_: int, reached: int = 0) -> None:
    """Refuse a round that is not one of the next after the model's; ProtocolError.

    `reached` is the last round that came to anything here: those that follow are never out of reach.
    """
    last = max(model.round, reached)
    if not model.round < round_ <= last + MAX_AHEAD:
        raise ProtocolError(
            f"round {round_} is not one of the {MAX_AHEAD} after this node's, {last}"
        )


def check_slot(model: Model, slot: Slot, expected: Slot) -> None:
    """Refuse a sum of another round, or of what is not expected; ProtocolError."""
    if slot.round <= model.round:
        raise ProtocolError(
            f"got the sum of round {slot.round}, this node's model is at round {model.round}"
        )
    if slot != expected:
        raise ProtocolError(
            f"the sum of round {slot.round} belongs to another run, epoch, parameter set, or to "
            "a model with another history or other weights, or its senders were told otherwise"
        )


def check_shape(total: Sealed, adder: Adder, length: int, need: int, *, sparse: bool) -> None:
    """Refuse a sum of another scheme, form or length, or of fewer than `need` senders.

    Raises
    ------
    ProtocolError
        Another scheme, form or length.
    QuorumError
        Too few senders.
    """
    round_ = total.slot.round
    if total.scheme != adder.name:
        raise ProtocolError(f"the sum of round {round_} is of another scheme")
    adder.check_mode(total.mode)
    check_senders(total.senders, adder.cohort)
    if bool(total.supports) != sparse:
        raise ProtocolError(f"the sum of round {round_} is sparse, or should be")
    if total.length != length:
        raise ProtocolError(f"the sum of round {round_} has another length than the model")
    if total.data.size != adder.nbytes(total.length):
        raise ProtocolError(f"the sum of round {round_} was cut short or extended")
    if len(total.senders) < need:
        raise QuorumError(
            f"the sum of round {round_} has {len(total.senders)} senders, this roster "
            f"opens none of fewer than {need}"
        )

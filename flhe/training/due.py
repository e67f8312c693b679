"""Which rounds are due next: those that may be asked for, and whose sums may be opened."""

from __future__ import annotations

from flhe.errors import ProtocolError
from flhe.training.model import Model

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

"""MeanSquares: the sum that a round's clipping thresholds are fitted on.

Each client encrypts its own, layer by layer, before its update; only their sum is opened, and one of a
round. The round's slot names that sum, so nobody's update is added to one that was clipped otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from flhe.coding.base import Plain, State
from flhe.coding.extras import FIXED, Extras
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import Record
from flhe.training.draft import Draft
from flhe.training.due import check_due
from flhe.training.kind import Kind
from flhe.training.model import Model
from flhe.training.terms import Terms

if TYPE_CHECKING:
    from flhe.training.session import Session


class MeanSquares(Kind):
    """What comes before an update whose thresholds are fitted."""

    purpose: ClassVar[str] = "mean-squares"
    valued: ClassVar[bool] = False

    def extras(self, terms: Terms, layout: Layout) -> int:
        """Two exact numbers a layer, behind count and weight."""
        squares = 2 * len(list(layout.segments()))
        return Quantize(terms.bits).lanes(FIXED + squares, layout)


MEAN_SQUARES = MeanSquares()


def encode(session: Session, model: Model, draft: Draft) -> Plain:
    """A draft's mean squares, layer by layer, as exact integers: no values, extras only."""
    codec = session.terms.codec
    state = codec.recall(session.layout, model.memory)
    fixed = Extras().encode(1, {}, ())
    exact = np.concatenate([fixed, codec.statistics(draft.plain(), state)])
    quantize = Quantize(session.terms.bits)
    return Plain(np.empty(0, quantize.dtype), quantize.split(exact))


def fit(
    session: Session,
    model: Model,
    round_: int,
    mean_squares: Sealed | None,
    record: Record,
    base: bytes,
) -> State:
    """The codecs' state in a round from `model`, thresholds fitted on `mean_squares` where due.

    `record` is called before anything is decrypted; `base` is the keyed digest of `model`.

    Raises ProtocolError: mean squares that are missing, not due, or not this round's; AlteredError:
    they are not the sum of what their senders encrypted; QuorumError: fewer senders than the roster's
    bound for opening; ReuseError: other mean squares of this round were opened before.
    """
    codec = session.terms.codec
    state = codec.recall(session.layout, model.memory)
    if not session.needs_mean_squares(model):
        if mean_squares is not None:
            raise ProtocolError("a sum of mean squares in a round that needs none")
        return state
    if mean_squares is None:
        raise ProtocolError("the sum of mean squares that this round's thresholds need is missing")
    of = session.sum(
        model,
        round_,
        mean_squares.slot.attempt,
        kind=MEAN_SQUARES,
        digest=base,
    )
    check_due(model, mean_squares)
    of.check(mean_squares, session.epoch.roster.min_opening)
    lanes = of.open(session.epoch, mean_squares, record)
    quantize = Quantize(of.bits)
    quantize.check_sum(int(np.abs(lanes.astype(np.int64)).max()), len(mean_squares.senders))
    sums = quantize.join(lanes)
    totals = Extras().decode(sums[:FIXED])
    if totals.count != len(mean_squares.senders):
        raise ProtocolError("the sum of mean squares does not hold one part from each sender")
    return codec.fitted(sums[FIXED:], totals.count, state)

"""MeanSquares: the sum that a round's clipping thresholds are fitted on.

Each client encrypts its own, layer by layer, before its update; only their sum is opened, and one of a
round. The round's slot names that sum, so nobody's update is added to one that was clipped otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flhe.coding.base import Plain, State
from flhe.coding.extras import FIXED, Extras
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import Record
from flhe.training.draft import Draft
from flhe.training.kind import Kind, exact_part, exact_sums
from flhe.training.model import Model
from flhe.training.terms import Terms

if TYPE_CHECKING:
    from flhe.training.session import Session


def _extras(terms: Terms, layout: Layout) -> int:
    """Two exact numbers a layer, behind count and weight."""
    squares = 2 * len(list(layout.segments()))
    return Quantize(terms.bits).lanes(FIXED + squares, layout)


MEAN_SQUARES = Kind("mean-squares", _extras, valued=False)


def encode(session: Session, model: Model, draft: Draft) -> Plain:
    """A draft's mean squares, layer by layer, as exact integers: no values, extras only."""
    codec = session.terms.codec
    state = codec.recall(session.layout, model.memory)
    fixed = Extras().encode(1, {}, ())
    squares = codec.statistics(draft.plain(), state)
    return exact_part(session.terms, np.concatenate([fixed, squares]))


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
    attempt = mean_squares.slot.attempt
    of = session.sum(model, round_, attempt, kind=MEAN_SQUARES, digest=base)
    of.check(mean_squares, session.epoch.roster.min_opening)
    lanes = of.open(session.epoch, mean_squares, record)
    sums = exact_sums(session.terms, mean_squares, lanes)
    return codec.fitted(sums[FIXED:], len(mean_squares.senders), state)

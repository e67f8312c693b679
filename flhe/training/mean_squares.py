"""MeanSquares: the sum that a round's clipping thresholds are fitted on.

Each client encrypts its own, layer by layer, before its update; only their sum is opened, and one of a
round. The round's slot names that sum, so nobody's update is added to one that was clipped otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import FIXED, Extras
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.schemes.sealed import Sealed
from flhe.training.draft import Draft
from flhe.training.kind import Kind, exact_part, exact_sums
from flhe.training.model import Model
from flhe.training.terms import Terms


def _extras(terms: Terms, layout: Layout) -> int:
    """Two exact numbers a layer, behind count and weight."""
    squares = 2 * len(list(layout.segments()))
    return Quantize(terms.bits).lanes(FIXED + squares, layout)


MEAN_SQUARES = Kind("mean-squares", _extras, valued=False)


def encode(terms: Terms, model: Model, draft: Draft) -> Plain:
    """A draft's mean squares, layer by layer, as exact integers; terms are the epoch's."""
    state = terms.codec.recall(model.layout, model.memory)
    squares = terms.codec.statistics(draft.plain(), state)
    return exact_part(terms, np.concatenate([Extras().encode(1, {}, ()), squares]))


def read(terms: Terms, total: Sealed, lanes: NDArray[Any], state: State) -> State:
    """The codecs' state with thresholds that are fitted on an opened sum.

    Raises ProtocolError: integers that these senders cannot have added up to.
    """
    sums = exact_sums(terms, total, lanes)
    return terms.codec.fitted(sums[FIXED:], len(total.senders), state)

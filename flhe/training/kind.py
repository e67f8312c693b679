"""Kinds of sums, as their readers see them, and those of exact numbers only.

A round is a short program over such sums:

    sensitivity (once) -> mean squares (where thresholds are fitted) -> update -> evaluation

A round's clipping thresholds are fitted on mean squares. Each client encrypts its own, layer by
layer, before its update; only their sum is opened, one in each round. The round's slot names that
sum, so updates clipped under other thresholds never add to it.

In an evaluation, members measure one model on their own examples. A loss in clear, of models that
the server chooses, would reveal one site's gradient; an accuracy k / n its example count. So
metrics leave as one sum for each model, weighted by example counts. Its slot is that of the round
that made the model, after all attempts at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain, State
from flhe.coding.extras import FIXED, Extras, Totals
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.training.terms import Terms

LAST = (1 << 32) - 1
"""Attempt number of an evaluation: none follows it in the round that made the model."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of sum; for `purpose` see `Slot`."""

    purpose: str
    extras: Callable[[Terms, Layout], int]
    """Number of integers after the values, without tags."""
    attempt: int | None = None
    """Fixed attempt number, if each model has only one such sum."""
    partial: bool = False
    """Whether it may be sparse, or hold only a selected part of the values."""
    valued: bool = True
    """Whether it has a value for each of the model's, encoded under the round's thresholds."""


def exact_lanes(terms: Terms, count: int, layout: Layout) -> int:
    """Return how many integers carry so many exact numbers."""
    return Quantize(terms.bits).lanes(count, layout)


def exact_part(terms: Terms, numbers: NDArray[np.int64]) -> Plain:
    """Return a contribution of exact numbers only; the first counts contributions, 1."""
    quantize = Quantize(terms.bits)
    return Plain(np.empty(0, quantize.dtype), quantize.split(numbers))


def exact_sums(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the sums of such numbers; ProtocolError if these senders cannot have produced them."""
    quantize, senders = Quantize(terms.bits), len(total.senders)
    quantize.check_sum(int(np.abs(lanes.astype(np.int64)).max()), senders)
    sums = quantize.join(lanes)
    if sums[COUNT] != senders:
        raise ProtocolError("the opened sum must hold one part from each sender")
    return sums


MEAN_SQUARES = Kind(
    "mean-squares",
    lambda terms, of: exact_lanes(terms, FIXED + 2 * len(list(of.segments())), of),
    valued=False,
)
"""Two exact numbers for each layer, after count and weight."""


def mean_squares_part(terms: Terms, model: Model, draft: Draft) -> Plain:
    """Return a draft's mean squares by layer as exact integers; terms are the epoch's."""
    state = terms.codec.recall(model.layout, model.memory)
    squares = terms.codec.statistics(draft.plain(), state)
    return exact_part(terms, np.concatenate([Extras().encode(1, {}, ()), squares]))


def fitted(terms: Terms, total: Sealed, lanes: NDArray[Any], state: State) -> State:
    """Return the codecs' state with thresholds fitted on an opened sum of mean squares.

    Raises ProtocolError: these senders cannot have produced the integers.
    """
    sums = exact_sums(terms, total, lanes)
    return terms.codec.fitted(sums[FIXED:], len(total.senders), state)


EVALUATION = Kind(
    "evaluation",
    lambda terms, of: exact_lanes(terms, Extras(terms.evaluated).length, of),
    attempt=LAST,
    valued=False,
)
"""Two exact numbers for each metric, after count and weight."""


def evaluation_part(terms: Terms, weight: int, metrics: Mapping[str, float]) -> Plain:
    """Return a member's metrics as exact integers; only those named in the terms leave.

    Terms are the epoch's; `weight` is the member's example count, limited by its bound.
    """
    return exact_part(terms, Extras(terms.evaluated).encode(weight, metrics, ()))


def evaluated(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> Totals:
    """Return the totals of evaluations; ProtocolError if its senders cannot have produced them."""
    return Extras(terms.evaluated).decode(exact_sums(terms, total, lanes))

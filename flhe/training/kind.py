"""Kind: what a sum is of, as its readers know it. Those of exact numbers alone are here.

A round is a short program over such sums:

    sensitivity (once) -> mean squares (where thresholds are fitted) -> update -> evaluation

Mean squares are what a round's clipping thresholds are fitted on. Each client encrypts its own, layer
by layer, before its update; only their sum is opened, and one of a round. The round's slot names that
sum, so nobody's update is added to one that was clipped otherwise.

An evaluation is what members find of one model, on their own examples. A loss told in clear, of models
that the server chooses, gives one site's gradient; an accuracy k / n gives its example count. So
metrics leave as a sum, weighted inside it by example counts, and of each model one: its slot is that
of the round that made the model, behind every attempt at it.
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
"""In the place of an attempt's number: none comes after the evaluation of what the round has made."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of sum; for `purpose` see `Slot`."""

    purpose: str
    extras: Callable[[Terms, Layout], int]
    """Integers behind its values, without tags."""
    attempt: int | None = None
    """In the place of an attempt's number, where there is one such sum of a model."""
    partial: bool = False
    """Whether it may be sparse, or hold a selected part of the values only."""
    valued: bool = True
    """Whether it has a value for each of the model's, encoded under the round's thresholds."""


def exact_lanes(terms: Terms, count: int, layout: Layout) -> int:
    """Integers that carry so many exact numbers."""
    return Quantize(terms.bits).lanes(count, layout)


def exact_part(terms: Terms, numbers: NDArray[np.int64]) -> Plain:
    """A contribution without values: exact numbers, the count of contributions, 1, first."""
    quantize = Quantize(terms.bits)
    return Plain(np.empty(0, quantize.dtype), quantize.split(numbers))


def exact_sums(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> NDArray[np.int64]:
    """The sums of such numbers; ProtocolError for what these senders cannot have added up to."""
    quantize, senders = Quantize(terms.bits), len(total.senders)
    quantize.check_sum(int(np.abs(lanes.astype(np.int64)).max()), senders)
    sums = quantize.join(lanes)
    if sums[COUNT] != senders:
        raise ProtocolError("the opened sum does not hold one part from each sender")
    return sums


MEAN_SQUARES = Kind(
    "mean-squares",
    lambda terms, of: exact_lanes(terms, FIXED + 2 * len(list(of.segments())), of),
    valued=False,
)
"""Two exact numbers a layer, behind count and weight."""


def mean_squares_part(terms: Terms, model: Model, draft: Draft) -> Plain:
    """A draft's mean squares, layer by layer, as exact integers; terms are the epoch's."""
    state = terms.codec.recall(model.layout, model.memory)
    squares = terms.codec.statistics(draft.plain(), state)
    return exact_part(terms, np.concatenate([Extras().encode(1, {}, ()), squares]))


def fitted(terms: Terms, total: Sealed, lanes: NDArray[Any], state: State) -> State:
    """The codecs' state with thresholds that are fitted on an opened sum of mean squares.

    Raises ProtocolError: integers that these senders cannot have added up to.
    """
    sums = exact_sums(terms, total, lanes)
    return terms.codec.fitted(sums[FIXED:], len(total.senders), state)


EVALUATION = Kind(
    "evaluation",
    lambda terms, of: exact_lanes(terms, Extras(terms.evaluated).length, of),
    attempt=LAST,
    valued=False,
)
"""Two exact numbers a metric, behind count and weight."""


def evaluation_part(terms: Terms, weight: int, metrics: Mapping[str, float]) -> Plain:
    """One member's metrics as exact integers; those that the terms do not name stay here.

    Terms are the epoch's; `weight` is its example count, as it may be weighed.
    """
    return exact_part(terms, Extras(terms.evaluated).encode(weight, metrics, ()))


def evaluated(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> Totals:
    """What a sum of evaluations says; ProtocolError for what its senders cannot have added up to."""
    return Extras(terms.evaluated).decode(exact_sums(terms, total, lanes))

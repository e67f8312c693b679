"""Kind: what a sum is of, as its readers know it: an update, a map, mean squares, or an evaluation.

A round is a short program over such sums:

    sensitivity (once) -> mean squares (where thresholds are fitted) -> update -> evaluation

Each is in a module of its own, which says what goes into a contribution and what is made of the total.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms


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

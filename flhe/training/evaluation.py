"""Evaluation: the sum of what members find of one model, on their own examples.

A loss told in clear, of models that the server chooses, gives one site's gradient; an accuracy k / n
gives its example count. So metrics leave as a sum, weighted inside it by example counts, and of each
model one: its slot is that of the round that made the model, behind every attempt at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.extras import Extras, Totals
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.schemes.sealed import Sealed
from flhe.training.kind import Kind, exact_part, exact_sums
from flhe.training.terms import Terms

ATTEMPT = (1 << 32) - 1
"""In the place of an attempt's number: none comes after the evaluation of what the round has made."""


def _extras(terms: Terms, layout: Layout) -> int:
    """Two exact numbers a metric, behind count and weight."""
    return Quantize(terms.bits).lanes(Extras(terms.evaluated).length, layout)


EVALUATION = Kind("evaluation", _extras, attempt=ATTEMPT, valued=False)


def encode(terms: Terms, weight: int, metrics: Mapping[str, float]) -> Plain:
    """One member's metrics as exact integers; those that the terms do not name stay here.

    Terms are the epoch's; `weight` is its example count, as it may be weighed.
    """
    return exact_part(terms, Extras(terms.evaluated).encode(weight, metrics, ()))


def read(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> Totals:
    """What an opened sum says; ProtocolError for what these senders cannot have added up to."""
    return Extras(terms.evaluated).decode(exact_sums(terms, total, lanes))

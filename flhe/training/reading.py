"""Reading: from the integers of an opened sum to the next model.

Members do it to the sums that they open themselves; where the server reads, it
does the same to its own model, and needs no epoch for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays
from flhe.math.ring import Elements
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed
from flhe.training import update
from flhe.training.kind import evaluated
from flhe.training.model import Model
from flhe.training.terms import Terms


def served(arrays: Arrays, round_: int) -> Model:
    """A model as the server tells it.

    Its history is a hash of its arrays, so members that are told different ones derive different
    slots, and none of their sums is opened.

    Raises ConfigError: an array of a type that does not average, by name.
    """
    return replace(Model.initial(arrays), round=round_)


@dataclass(frozen=True, slots=True)
class ServerReader:
    """The server's side of rounds whose sums it reads.

    It holds no key; the members release one sum of seeds a round. Terms are the epoch's, bits and all;
    the adder is for its cohort, of a scheme that lets the server read.
    """

    terms: Terms
    adder: Adder

    def open(
        self, model: Model, total: Sealed, released: Elements, *, threads: int = 1
    ) -> tuple[Model, Totals]:
        """Open the sum of a round from `model`; gives the next one, as it is told to everybody.

        `released` is the sum of the senders' keys, shape (elements,). Raises ProtocolError where
        that is not what the sum was masked with.
        """
        lanes = self.adder.server_opener(released, threads=threads).decrypt(total)
        state = self.terms.codec.recall(model.layout, model.memory)
        # `read` writes into the masters: a sum that fails in the middle must not leave half a model.
        copy = replace(model, masters={name: a.copy() for name, a in model.masters.items()})
        after, totals = update.read(self.terms, copy, total, lanes, state)
        told = served(after.arrays(), after.round)
        return replace(after, history=told.history), totals

    def evaluation(self, total: Sealed, released: Elements, *, threads: int = 1) -> Totals:
        """Open what members found of the model; `released` and errors as in `open`."""
        lanes = self.adder.server_opener(released, threads=threads).decrypt(total)
        return evaluated(self.terms, total, lanes)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that somebody reported: NaN marks those that nobody did."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}

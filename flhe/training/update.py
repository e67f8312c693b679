"""Update: the sum of model changes or gradients; its mean makes the next model.

Members read the sums that they open themselves. If the server reads them, it applies the same to
its own model, without an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays
from flhe.math.permutation import Permutation
from flhe.math.ring import Elements
from flhe.schemes import sealed
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed
from flhe.training.kind import Kind, evaluated
from flhe.training.model import Model
from flhe.training.terms import Terms

UPDATE = Kind(sealed.UPDATE, Terms.extra_lanes, partial=True)
"""The sum of each training round."""


def read(
    terms: Terms,
    model: Model,
    total: Sealed,
    lanes: NDArray[Any],
    state: State,
    permutation: Permutation | None = None,
) -> tuple[Model, Totals]:
    """Return the model after a round from `model` and its sum; its history is set later.

    Terms are the epoch's with their bits; `state` is the codec's in this round. `lanes` is the
    content of the sum `total`: signed values, then extras, shape (values + extras,), overwritten.
    `permutation` is the secret order of coordinates in this attempt, if the codec hides them.

    Raises ProtocolError: these senders cannot have produced the integers.
    """
    layout, codec = model.layout, terms.codec.keyed(permutation)
    length = lanes.size - terms.extra_lanes(layout)
    plain = Plain(lanes[:length], lanes[length:])
    if total.supports:
        plain = plain._replace(coords=total.coords)
    opened, state = codec.decode(plain, total.senders, state, reuse=True)
    totals = terms.extras(layout).decode(opened.extras)
    optimizer = terms.optimizer
    moments = model.moments or optimizer.init(layout.floats)
    # A server's optimizer counts rounds, as Flower's do; a client's its own steps, as PyTorch's do.
    trained = total.slot.round - terms.select.mapped  # the round of the map does not count
    number = model.steps + 1 if optimizer.gradients else trained
    mean = opened.values.astype(np.float32, copy=False)  # steps that do not fuse give float64
    change, moments = optimizer.step(mean, moments, number, out=mean)
    masters = layout.apply(model.masters, change, totals.integers, reuse=True)
    after = replace(model, masters=masters, moments=moments, memory=codec.memory(state))
    return replace(after, round=total.slot.round, steps=model.steps + 1), totals


def served(arrays: Arrays, round_: int) -> Model:
    """Return a model as the server sends it.

    Its history is a hash of its arrays, so members with different models derive different slots,
    and none of their sums is opened.

    Raises ConfigError: an array of a type that cannot be averaged, by name.
    """
    return replace(Model.initial(arrays), round=round_)


@dataclass(frozen=True, slots=True)
class ServerReader:
    """The server's side of rounds whose sums it reads.

    It holds no key; the members release one sum of seeds in each round. Terms are the epoch's with
    their bits; the adder is for its cohort, of a scheme that lets the server read.
    """

    terms: Terms
    adder: Adder

    def open(
        self, model: Model, total: Sealed, released: Elements, *, threads: int = 1
    ) -> tuple[Model, Totals]:
        """Open the sum of a round from `model`; return the next one, as the server sends it.

        `released` is the sum of the senders' keys, shape (elements,). Raises ProtocolError if the
        sum was masked with others.
        """
        lanes = self.adder.server_opener(released, threads=threads).decrypt(total)
        state = self.terms.codec.recall(model.layout, model.memory)
        after, totals = read(self.terms, model, total, lanes, state)
        told = served(after.arrays(), after.round)
        return replace(after, history=told.history), totals

    def evaluation(self, total: Sealed, released: Elements, *, threads: int = 1) -> Totals:
        """Open the evaluations of the model; `released` and errors as in `open`."""
        lanes = self.adder.server_opener(released, threads=threads).decrypt(total)
        return evaluated(self.terms, total, lanes)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that have a mean: NaN marks others."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}

"""Reading: from the integers of an opened sum to the next model.

Members do it to the sums that they open themselves; where the server reads, it
does the same to its own model, and needs no epoch for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.chain import Chain
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays
from flhe.coding.quantize import Quantize
from flhe.coding.support import covered
from flhe.coding.weigh import Weigh
from flhe.errors import ProtocolError
from flhe.math.ring_arrays import Elements
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.terms import Terms


def apply(
    terms: Terms,
    codec: Chain,
    model: Model,
    total: Sealed,
    lanes: NDArray[Any],
    state: State,
    check: int,
) -> tuple[Model, Totals]:
    """Decode an opened sum and step with its mean, from the model that its round started from.

    Parameters
    ----------
    terms : Terms
        The epoch's, bits and all.
    codec : Chain
        The terms' codec, with the permutation of the attempt.
    model : Model
        The model before the round.
    total : Sealed
        The sum.
    lanes : NDArray
        What is in it: signed values, then extras, shape (values + extras,); overwritten.
    state : State
        The codec's, in this round.
    check : int
        What the senders' checks must add up to.

    Raises
    ------
    ProtocolError
        Integers that these senders cannot have added up to, or a check that differs.
    """
    layout = model.layout
    length = lanes.size - terms.extra_lanes(layout)
    plain = Plain(lanes[:length], lanes[length:])
    if total.supports:
        plain = plain._replace(coords=covered(total.supports))
    opened, state = codec.decode(plain, total.senders, state, reuse=True)
    totals = terms.extras(layout).decode(opened.extras)
    _check(totals, check)
    optimizer = terms.optimizer
    moments = model.moments or optimizer.init(layout.floats)
    # A server's optimizer counts rounds, as Flower's do; a client's its own steps, as PyTorch's do.
    trained = total.slot.round - terms.select.mapped  # a round for the map is none of training
    number = trained if optimizer.takes == "update" else model.steps + 1
    change, moments = optimizer.step(opened.values, moments, number, out=opened.values)
    masters = layout.apply(model.masters, change, totals.integers, reuse=True)
    memory = codec.memory(state)
    return model.after(total.slot.round, total.digest(), masters, moments, memory), totals


def choose(
    terms: Terms, model: Model, total: Sealed, lanes: NDArray[Any], check: int
) -> tuple[Model, Totals]:
    """Decode an opened sum of maps; the model with the mask that it gives.

    Parameters and errors as for `apply`.
    """
    layout, senders = model.layout, total.senders
    quantize = Quantize(terms.bits)
    # The map is used as the integers that it is: all members come to the same mask, to the last tie.
    quantize.check_sum(int(max(lanes.max(), -int(lanes.min()))), len(senders))
    sums, extras = lanes[: layout.floats], quantize.join(lanes[layout.floats :])
    Weigh(1).mean_factor(Plain(sums, extras), senders)
    totals = terms.extras(layout).decode(extras)
    _check(totals, check)
    mask = terms.select.of_map(sums, layout)
    return model.masked(total.slot.round, total.digest(), mask), totals


def _check(totals: Totals, check: int) -> None:
    if totals.check != check:
        raise ProtocolError(
            "a sender of the sum started from another model, or sent other coordinates; it is refused"
        )


def served(arrays: Arrays, round_: int) -> Model:
    """A model as the server tells it.

    Its history is a hash of its arrays, so members that are told different ones derive different
    slots, and none of their sums is opened.

    Raises
    ------
    ConfigError
        An array of a type that does not average, by name.
    """
    return replace(Model.initial(arrays), round=round_)


@dataclass(frozen=True, slots=True)
class ServerReader:
    """The server's side of rounds whose sums it reads.

    It holds no key; the members release one sum of seeds a round.

    Parameters
    ----------
    terms : Terms
        The epoch's, bits and all.
    adder : Adder
        For the epoch's cohort, of a scheme that lets the server read.
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
        codec = self.terms.codec
        state = codec.recall(model.layout, model.memory)
        # `apply` writes into the masters: a sum that fails in the middle must not leave half a model.
        copy = replace(model, masters={name: a.copy() for name, a in model.masters.items()})
        after, totals = apply(self.terms, codec, copy, total, lanes, state, 0)
        told = served(after.arrays(), after.round)
        return replace(after, history=told.history), totals


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that somebody reported: NaN marks those that nobody did."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}

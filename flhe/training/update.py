"""Update: the sum of what training changed, or of gradients; its mean makes the next model."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Totals
from flhe.coding.support import covered
from flhe.math.permutation import Permutation
from flhe.schemes import sealed
from flhe.schemes.sealed import Sealed
from flhe.training.kind import Kind
from flhe.training.model import Model
from flhe.training.terms import Terms

UPDATE = Kind(sealed.UPDATE, Terms.extra_lanes, partial=True)
"""What every round of training adds up."""


def read(
    terms: Terms,
    model: Model,
    total: Sealed,
    lanes: NDArray[Any],
    state: State,
    permutation: Permutation | None = None,
) -> tuple[Model, Totals]:
    """The model after a round from `model`, by what its sum holds; its history is yet to follow.

    Terms are the epoch's, bits and all; the state is the codec's, in this round. `lanes` is what is in
    the sum `total`: signed values, then extras, shape (values + extras,), overwritten. `permutation` is
    the secret order of coordinates in this attempt, where the codec hides them.

    Raises ProtocolError: integers that these senders cannot have added up to.
    """
    layout, codec = model.layout, terms.codec.keyed(permutation)
    length = lanes.size - terms.extra_lanes(layout)
    plain = Plain(lanes[:length], lanes[length:])
    if total.supports:
        plain = plain._replace(coords=covered(total.supports))
    opened, state = codec.decode(plain, total.senders, state, reuse=True)
    totals = terms.extras(layout).decode(opened.extras)
    optimizer = terms.optimizer
    moments = model.moments or optimizer.init(layout.floats)
    # A server's optimizer counts rounds, as Flower's do; a client's its own steps, as PyTorch's do.
    trained = total.slot.round - terms.select.mapped  # a round for the map is none of training
    number = model.steps + 1 if optimizer.gradients else trained
    change, moments = optimizer.step(opened.values, moments, number, out=opened.values)
    masters = layout.apply(model.masters, change, totals.integers, reuse=True)
    memory = codec.memory(state)
    return model.after(total.slot.round, masters, moments, memory), totals

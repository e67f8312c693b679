"""Sensitivity: the sum of the members' maps, by which all of them select the same part of an update.

Each member's map is scaled to at most 1 before it is added, so nobody's outweighs the others'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.weigh import Weigh
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.training.kind import Kind
from flhe.training.model import Model
from flhe.training.terms import Terms


def _codec(terms: Terms) -> Chain:
    """Quantizes a map, which is within [-1, 1] and counts as much as everybody's."""
    return chain(Clip(1.0), Weigh(1), Quantize(terms.bits))


def _extras(terms: Terms, layout: Layout) -> int:
    """As an update's, of which only the count says anything."""
    return _codec(terms).lanes(terms.extras(layout).length, layout)


SENSITIVITY = Kind("sensitivity", _extras)
"""What the first round adds up, where a map says what is selected."""


def encode(terms: Terms, layout: Layout, draft: Plain) -> Plain:
    """Quantize a map."""
    codec = _codec(terms)
    return codec.encode(draft, codec.init(layout))[0]


def read(terms: Terms, model: Model, total: Sealed, lanes: NDArray[Any]) -> tuple[Model, Totals]:
    """The same model with the mask that the sum gives; arguments and errors as `update.read`."""
    layout, senders = model.layout, total.senders
    quantize = Quantize(terms.bits)
    # The map is used as the integers that it is: all come to the same mask, to the last tie.
    quantize.check_sum(int(max(lanes.max(), -int(lanes.min()))), len(senders))
    sums, extras = lanes[: layout.floats], quantize.join(lanes[layout.floats :])
    Weigh(1).mean_factor(Plain(sums, extras), senders)
    totals = terms.extras(layout).decode(extras)
    mask = terms.select.of_map(sums, layout)
    return replace(model, round=total.slot.round, mask=mask), totals


def map_of_change(terms: Terms, model: Model, trained: Arrays) -> NDArray[np.float32]:
    """How much training changed each value, as such maps are added up."""
    change, _ = model.layout.change(trained, model.masters, gradients=terms.optimizer.gradients)
    return terms.select.normalized(change, reuse=True)


def map_of(select: Select, layout: Layout, found: Arrays) -> NDArray[np.float32]:
    """A member's sensitivities as a vector, as they are added up: shape (layout.floats,).

    What the map does not name, such as the running statistics of batch norm, counts as most sensitive:
    they come from the data as directly as anything. Parameters that are frozen, whose map is zero, may
    be named though they are no part of the model that travels, as with adapters. What is `found` is by
    the model's names, in their shapes.

    Raises ProtocolError: a name or shape that the model does not have, or none at all; RangeError:
    NaN, infinity, or a map of zeros.
    """
    shapes = {e.name: e.shape for e in layout.entries if e.is_float}
    found = {name: array for name, array in found.items() if name in shapes or np.any(array)}
    for name, array in found.items():
        if tuple(np.shape(array)) != shapes.get(name):
            has = f"has shape {shapes[name]}" if name in shapes else "has none of that name"
            raise ProtocolError(
                f"the map holds {name!r} of shape {tuple(np.shape(array))}, the model {has}"
            )
    if not found:
        raise ProtocolError("the map is empty: give an array for each of the model's parameters")
    values = np.empty(layout.floats, np.float32)
    for name, start, stop in layout.segments():
        own = np.asarray(found[name], np.float32).reshape(-1) if name in found else 0
        values[start:stop] = own
    select.normalized(values, reuse=True)
    for name, start, stop in layout.segments():
        if name not in found:
            values[start:stop] = 1
    return values

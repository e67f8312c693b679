"""Sensitivity: the sum of members' maps, by which all select the same part of an update.

Each member's map is scaled to at most 1, so no map outweighs the others.
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
    """Return the codec of a map, which lies within [-1, 1] and has weight 1."""
    return chain(Clip(1.0), Weigh(1), Quantize(terms.bits))


def _extras(terms: Terms, layout: Layout) -> int:
    """Return as many extras as an update has; only the count is used."""
    return _codec(terms).lanes(terms.extras(layout).length, layout)


SENSITIVITY = Kind("sensitivity", _extras)
"""Sum of the first round if a map decides the selection."""


def encode(terms: Terms, layout: Layout, draft: Plain) -> Plain:
    """Quantize a map."""
    codec = _codec(terms)
    return codec.encode(draft, codec.init(layout))[0]


def read(terms: Terms, model: Model, total: Sealed, lanes: NDArray[Any]) -> tuple[Model, Totals]:
    """Return the model with the mask from the sum; arguments and errors as `update.read`."""
    layout, senders = model.layout, total.senders
    quantize = Quantize(terms.bits)
    # The map's integers are used directly: all members get the same mask, ties included.
    quantize.check_sum(int(max(lanes.max(), -int(lanes.min()))), len(senders))
    sums, extras = lanes[: layout.floats], quantize.join(lanes[layout.floats :])
    Weigh(1).mean_factor(Plain(sums, extras), senders)
    totals = terms.extras(layout).decode(extras)
    mask = terms.select.of_map(sums, layout)
    return replace(model, round=total.slot.round, mask=mask), totals


def map_of(select: Select, layout: Layout, found: Arrays) -> NDArray[np.float32]:
    """Return a member's sensitivities as a vector to be added, shape (layout.floats,).

    Values without an entry, such as batch norm's running statistics, count as most sensitive: they
    come directly from the data. Frozen parameters with a zero map may be named although the model
    that travels lacks them, as with adapters. `found` uses the model's names and shapes.

    Raises ProtocolError: a name or shape unknown to the model, or an empty map; RangeError: NaN,
    infinity, or a map of zeros.
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

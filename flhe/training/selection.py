"""Selection in a session: masks that follow from the layout, and a member's map as a vector."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import Arrays, Layout
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.errors import ProtocolError


@functools.lru_cache(maxsize=2)
def fixed_mask(select: Select, layout: Layout) -> Support:
    """The selection of a rule that needs no map; see `Select.fixed`."""
    return select.fixed(layout)


def map_of(select: Select, layout: Layout, found: Arrays) -> NDArray[np.float32]:
    """A member's sensitivities as a vector, as they are added up: shape (layout.floats,).

    What the map does not name, such as the running statistics of batch norm, counts as most sensitive:
    they come from the data as directly as anything. Parameters that are frozen, whose map is zero, may
    be named though they are no part of the model that travels, as with adapters.

    Parameters
    ----------
    found : mapping of str to NDArray
        By the model's names, in their shapes.

    Raises
    ------
    ProtocolError
        A name or shape that the model does not have, or none at all.
    RangeError
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

"""Forms that a secret may have before anybody writes it down: types, byte orders, signs, scales.

Vectors are looked for as float32, float64, float16 and printed decimals; updates also negated, in the
other byte order and divided by the clipping threshold. Counts: `counts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.sim.rehearsal.writings import printed

MOST = 1 << 14
"""Values of a vector that are looked for in all forms; the others as they are."""


def floats(array: NDArray[np.generic]) -> bytes:
    """An array's bytes as they would travel."""
    return np.ascontiguousarray(array).tobytes()


def of_vector(values: NDArray[Any]) -> Iterator[bytes]:
    """A model, or anything else of floats; of other numbers as they are."""
    yield floats(values)
    if values.dtype.kind != "f":
        return
    some = values.reshape(-1)[:MOST]
    yield floats(some.astype("<f8"))
    with np.errstate(over="ignore"):
        yield floats(some.astype("<f2"))
    yield printed(some)


def of_update(update: NDArray[np.float32], clip: float = 0.0) -> Iterator[bytes]:
    """An update: float32 differences, of either sign, and in units of the threshold `clip`."""
    for sign in (1, -1):
        yield from of_vector(np.multiply(update, sign, dtype=update.dtype))
    some = update.reshape(-1)[:MOST]
    yield floats(some.astype(">f4"))
    if clip:
        yield floats((some / clip).astype("<f4"))

"""Permute: hide the coordinates of a sparse update.

All senders of a round permute alike, and readers of the sum permute back. The permutation is secret
and changes with every round and attempt, so the session sets it (`keyed`); a configured chain holds
a `Permute()` that only marks the place.

Coordinates ascend before and after, so the order of values reveals nothing. Extras are not
permuted.

Source: FLASHE, Sec. 4.2 and Algorithm 1, lines 22-23 and 31.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Plain, Space, State
from flhe.errors import ConfigError, MisfitError, ProtocolError
from flhe.math.buffers import empty, fixed
from flhe.math.permutation import Permutation

DENSE = 8
"""A sum with more than one in so many of its coordinates is made dense."""


@dataclass(frozen=True, slots=True)
class Permute(Codec):
    """Permute coordinates; decode by the inverse. The session sets the permutation (`keyed`)."""

    name: ClassVar[str] = "permute"
    place: ClassVar[Literal["last"]] = "last"
    hides: ClassVar[bool] = True

    permutation: Permutation | None = None

    def summary(self) -> str:
        """Name the step."""
        return "coordinates permuted"

    def keyed(self, permutation: Permutation | None) -> Permute:
        """Return the step with the order of one attempt."""
        return Permute(permutation)

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> Permute:
        """Return the step itself; MisfitError without a sparsifier before it."""
        if not any(codec.sparse for codec in before):
            raise MisfitError("chain(): Permute is for sparse updates; put TopK first")
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the name only; never the key."""
        return {"name": self.name}

    def out(self, space: Space) -> Space:
        """Return the same space, reals or integers: values do not change."""
        return space

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Return images of the coordinates, ascending, and their values of any dtype, shape (k,).

        Raises ConfigError: no permutation; MisfitError: a dense update; RangeError: a coordinate
        beyond the permutation's length; ProtocolError: a repeated coordinate.
        """
        permutation, coords = self._parts(plain)
        return _sorted(plain, permutation.forward(coords), permutation.length), state

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Return the values at their original coordinates; a dense sum if many were sent.

        Raises as `encode`; ProtocolError also for coordinates that do not ascend.
        """
        from flhe.math import coordinate_kernels

        permutation, coords = self._parts(total)
        places, values = permutation.inverse(coords), np.ascontiguousarray(total.values)
        # A sum of many becomes dense in the end, and sorting takes longer. A decoded one takes the
        # place of integers of 32 bits, but not of others.
        if values.itemsize > 4 or coords.size < permutation.length // DENSE:
            return _sorted(total, places, permutation.length), state
        if values.shape != coords.shape:
            raise ProtocolError("Permute: not one value a coordinate")
        dense, word = empty(permutation.length, values.dtype), f"u{values.itemsize}"
        dense[:] = 0
        if not coordinate_kernels.place_all(
            values.view(word), fixed(coords), places, dense.view(word)
        ):
            raise ProtocolError("Permute: the coordinates do not ascend")
        return total._replace(values=dense, coords=None), state

    def _parts(self, plain: Plain) -> tuple[Permutation, NDArray[np.uint32]]:
        if self.permutation is None:
            raise ConfigError("Permute has no permutation: the round's session supplies it")
        if plain.coords is None:
            raise MisfitError("Permute: dense updates have nothing to permute; put TopK before it")
        return self.permutation, plain.coords


def _sorted(plain: Plain, coords: NDArray[np.uint32], length: int) -> Plain:
    """Return `plain` with these coordinates instead of its own, in ascending order."""
    from flhe.math import coordinate_kernels, sparse_kernels

    if plain.values.shape != coords.shape:
        raise ProtocolError("Permute: not one value a coordinate")
    words = np.zeros(-(-length // 64), np.uint64)
    starts = np.empty(words.size, np.uint32)
    ordered, ranks = empty(coords.size, np.uint32), empty(coords.size, np.uint32)
    if not sparse_kernels.rank(fixed(coords), words, starts, ordered, ranks):
        raise ProtocolError("Permute: a coordinate stands twice")
    # As plain words, so that the loop is compiled for three widths and not for every type.
    values, word = np.ascontiguousarray(plain.values), f"u{plain.values.dtype.itemsize}"
    placed = empty(values.size, values.dtype)
    coordinate_kernels.place(values.view(word), ranks, placed.view(word))
    return plain._replace(values=placed, coords=ordered)

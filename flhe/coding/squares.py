"""Mean squares by layer, as exact integers that add.

A mean square m >= 0 becomes two extras: hi in units of 2**-20 and lo, the rest, in units of 2**-72,

    m ~= hi * 2**-20 + lo * 2**-72,    0 <= hi < 2**52,  0 <= lo < 2**52,

so that values of 2**16 and of 2**-36 both fit. All his come first, then all los. Sums are exact,
and the mean of a sum is one division of integers, which Python rounds correctly. So every member
has the same mean to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError, RangeError
from flhe.math.prg import PIECE

HIGH, LOW = 20, 72
"""Bits behind the point of hi and lo."""

PART = 1 << (LOW - HIGH)
"""Bound on both parts of one mean square."""

LIMIT = 2.0 ** (LOW - 2 * HIGH)
"""Bound on mean squares: 2**32."""

MAX_SENDERS = ((1 << 63) - 1) // (PART - 1)
"""Maximum number of senders whose parts add up within 63 bits."""

Segments = tuple[tuple[int, int, float], ...]
"""(start, stop, alpha) for each run of a vector."""


class Layers(NamedTuple):
    """The readers' common knowledge of the L layers.

    Attributes
    ----------
    bounds
        Start of each layer in the float lane, and end of the last one: L + 1 numbers.
    alphas
        Thresholds in force, one a layer; None until the round's mean squares are known.
    mean_squares
        sigma^2 by layer, from which the thresholds were made; None if they were given.
    ranged
        True if they were made from this round's own mean squares: its updates then carry none.
    """

    bounds: tuple[int, ...]
    alphas: tuple[float, ...] | None = None
    mean_squares: tuple[float, ...] | None = None
    ranged: bool = False

    @property
    def layers(self) -> int:
        """L, the number of layers."""
        return len(self.bounds) - 1

    def edges(self, coords: NDArray[np.uint32] | None = None) -> NDArray[np.int64]:
        """Return the layers' starts in a vector of the values at `coords`, and its end: (L + 1,)."""
        bounds = np.array(self.bounds, np.int64)
        if coords is None:
            return bounds
        # One type on both sides: searchsorted would copy all coordinates to a common one.
        begins = np.searchsorted(coords, bounds[:-1].astype(np.uint32))
        return np.append(begins, coords.size).astype(np.int64)

    def segments(self, coords: NDArray[np.uint32] | None = None) -> Segments:
        """Return runs of one alpha in a vector of the values at `coords`, without empty layers."""
        edges = self.edges(coords).tolist()
        runs: list[tuple[int, int, float]] = []
        for start, stop, alpha in zip(edges[:-1], edges[1:], self.alphas or (), strict=True):
            if runs and runs[-1][2] == alpha:
                runs[-1] = (runs[-1][0], stop, alpha)
            elif start < stop:
                runs.append((start, stop, alpha))
        return tuple(runs)


def to_extras(mean_squares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return extras of one sender: shape (L,) in, (2 L,) out, rounded down to units of 2**-72.

    Raises RangeError: NaN, a negative number, or one of 2**32 and more.
    """
    if not np.all((mean_squares >= 0) & (mean_squares < LIMIT)):
        raise RangeError(
            "a layer of the update has no mean square below 2**32; lower the learning rate or clip "
            "gradients"
        )
    scaled = mean_squares * 2.0**HIGH
    high = np.floor(scaled)
    low = np.floor((scaled - high) * PART)  # exact: what a float64 holds behind the point
    return np.concatenate([high, low]).astype(np.int64)


def mean(sums: NDArray[np.int64], count: int, layers: int) -> list[float]:
    """Return the mean over `count` senders from their summed extras, shape (2 layers,): one a layer.

    Raises ProtocolError: sums of another length, or that `count` senders cannot reach.
    """
    most = count * (PART - 1)
    values = [int(v) for v in sums]
    if len(values) != 2 * layers or count < 1 or not all(0 <= v <= most for v in values):
        raise ProtocolError(
            f"the opened sum holds mean squares that {count} senders cannot reach; it is refused"
        )
    pairs = zip(values[:layers], values[layers:], strict=True)
    return [(high * PART + low) / (count << LOW) for high, low in pairs]


class Tally:
    """Mean squares by layer of one vector that comes in parts, multiplied with `scale`.

    `edges` are those of `Layers`: the starts of its L layers, and the end of the last one.
    """

    __slots__ = ("_at", "_edges", "_scale", "_sums")

    def __init__(self, edges: NDArray[np.int64], scale: float = 1.0) -> None:
        self._edges = edges
        self._scale = scale
        self._sums = np.zeros(edges.size - 1)
        self._at = 0

    def add(self, part: NDArray[np.float32]) -> None:
        """Add the squares of the next part of the vector, in float64."""
        for at in range(0, part.size, PIECE):
            wide = part[at : at + PIECE].astype(np.float64)
            np.square(wide, out=wide)
            start, stop = self._at, self._at + wide.size
            begin = np.maximum(self._edges[:-1], start)
            layers = np.flatnonzero(begin < np.minimum(self._edges[1:], stop))
            if layers.size == 1:
                self._sums[layers] += np.sum(wide)
            elif layers.size:
                # Layers without a value in this part are left out: reduceat would give them one.
                self._sums[layers] += np.add.reduceat(wide, begin[layers] - start)
            self._at = stop

    def extras(self) -> NDArray[np.int64]:
        """Return the mean squares as extras, (2 L,), 0 for empty layers; see `to_extras`."""
        means = self._sums / np.maximum(np.diff(self._edges), 1)
        return to_extras(means * self._scale**2)

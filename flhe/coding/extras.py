"""Extras: the few exact integers that travel beside an update.

    count | weight | for each metric: weight * value, weight where reported | weight * integer change

All of them are sums over the senders once added, so dividing by the summed weight gives FedAvg's
weighted means without the server ever seeing an example count. A metric is fixed-point with 16 bits
behind the point; one that is missing, not finite or 2**15 and more adds nothing to either sum, so the
mean is over those who reported it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError

POINT = 1 << 16
"""One, in a metric's fixed point."""

LIMIT = 1 << 15
"""Metrics of this size and beyond are left out."""

MAX_PRODUCT = 1 << 31
"""Bound of what a weight is multiplied with: metrics in fixed point, integer changes."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a round's extras say, once opened.

    Parameters
    ----------
    count : int
        Contributions.
    weight : int
        Sum of the example counts.
    metrics : dict[str, float]
        Weighted means; NaN where nobody reported one.
    integers : list[int]
        Weighted mean changes of the integer lane, rounded half up.
    """

    count: int
    weight: int
    metrics: dict[str, float]
    integers: list[int]


@dataclass(frozen=True, slots=True)
class Extras:
    """Names and places of the extras.

    Parameters
    ----------
    metrics : tuple[str, ...]
        Names of the training metrics that are averaged, in order.
    integers : int
        Length of the integer lane.
    """

    metrics: tuple[str, ...] = ()
    integers: int = 0

    def __post_init__(self) -> None:
        if len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"Extras: a metric is named twice in {self.metrics}")

    @property
    def length(self) -> int:
        """How many integers there are."""
        return 2 + 2 * len(self.metrics) + self.integers

    def encode(
        self, weight: int, metrics: Mapping[str, float], integers: Sequence[int]
    ) -> NDArray[np.int64]:
        """Extras of one client, shape (length,)."""
        out = [1, weight]
        for name in self.metrics:
            value = metrics.get(name, math.nan)
            valid = math.isfinite(value) and abs(value) < LIMIT
            out += [weight * round(value * POINT), weight] if valid else [0, 0]
        out += [weight * int(change) for change in integers]
        return np.array(out, np.int64)

    def decode(self, sums: NDArray[np.int64]) -> Totals:
        """Means out of the summed extras.

        Raises
        ------
        ProtocolError
            No contribution or no weight: there is nothing to divide by.
        """
        values = [int(v) for v in sums]
        count, weight = values[0], values[1]
        if count < 1 or weight < 1:
            raise ProtocolError("the opened sum holds no contribution; the round is refused")
        metrics = {}
        for i, name in enumerate(self.metrics):
            total, reported = values[2 + 2 * i], values[3 + 2 * i]
            metrics[name] = total / reported / POINT if reported > 0 else math.nan
        rest = values[2 + 2 * len(self.metrics) :]
        return Totals(count, weight, metrics, [(2 * v + weight) // (2 * weight) for v in rest])

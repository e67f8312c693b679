"""Extras: the few exact integers that travel beside an update.

    count | weight | for each metric: weight * value, weight where reported | weight * integer change

Dividing by the summed weight gives FedAvg's weighted means. A metric is fixed-point with 16 bits
behind the point. If it is missing, not finite or 2**15 and more, it adds nothing to either sum, and
the metric has no mean: one over fewer clients could be a single client's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, WEIGHT
from flhe.errors import ConfigError, ProtocolError

FIXED = 2
"""Index of the first metric."""

POINT = 1 << 16
"""One, in a metric's fixed point."""

LIMIT = 1 << 15
"""Bound on metrics; larger ones are left out."""

COARSE = 50
"""Steps of the fixed point below which rounding changes a metric by 1% and more."""

MAX_PRODUCT = 1 << 31
"""Bound on factors of a weight: metrics in fixed point, integer changes."""


def misfit(value: float) -> str:
    """Return why a metric of this value has no mean, or a coarse one; "" for a suitable value."""
    if not abs(value) < LIMIT:  # also NaN
        return "has no mean, because it is not finite, or 2**15 and more"
    if 0 < abs(value) * POINT < COARSE:
        return "is averaged in steps of 2**-16, which are 1% of it or more"
    return ""


@dataclass(frozen=True, slots=True)
class Totals:
    """A round's opened extras: the number of contributions, and the sum of their example counts.

    Metrics are weighted means, NaN unless all clients reported one; integers are weighted mean
    changes of the integer lane, rounded half up.
    """

    count: int
    weight: int
    metrics: dict[str, float]
    integers: list[int]


@dataclass(frozen=True, slots=True)
class Extras:
    """Names and places of the extras: of the training metrics that are averaged, in order.

    `integers` is the length of the integer lane.
    """

    metrics: tuple[str, ...] = ()
    integers: int = 0

    def __post_init__(self) -> None:
        if len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"Extras: a metric is named twice in {self.metrics}")

    @property
    def length(self) -> int:
        """Number of integers."""
        return FIXED + 2 * len(self.metrics) + self.integers

    def encode(
        self, weight: int, metrics: Mapping[str, float], integers: Sequence[int]
    ) -> NDArray[np.int64]:
        """Return the extras of one client, shape (length,)."""
        out = [1, weight]
        for name in self.metrics:
            value = metrics.get(name, math.nan)
            valid = math.isfinite(value) and abs(value) < LIMIT
            out += [weight * round(value * POINT), weight] if valid else [0, 0]
        out += [weight * int(change) for change in integers]
        return np.array(out, np.int64)

    def decode(self, sums: NDArray[np.int64]) -> Totals:
        """Return means from the summed extras.

        Raises ProtocolError: no contribution or no weight, so no divisor.
        """
        values = [int(v) for v in sums]
        count, weight = values[COUNT], values[WEIGHT]
        if count < 1 or weight < 1:
            raise ProtocolError("the opened sum holds no contribution; the round is refused")
        metrics = {}
        for i, name in enumerate(self.metrics):
            total, reported = values[FIXED + 2 * i : FIXED + 2 + 2 * i]
            if not 0 <= reported <= weight or abs(total) > reported * LIMIT * POINT:
                raise ProtocolError("the opened sum holds an impossible metric; it is refused")
            metrics[name] = total / weight / POINT if reported == weight else math.nan
        rest = values[FIXED + 2 * len(self.metrics) :]
        integers = [(2 * v + weight) // (2 * weight) for v in rest]
        return Totals(count, weight, metrics, integers)

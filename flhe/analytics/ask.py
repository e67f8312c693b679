"""Both ends of a statistic: a node's answers and the analyst's questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from flhe.analytics.schema import FRACTION, Real, Schema, Table
from flhe.analytics.statistics import (
    Below,
    Contingency,
    Count,
    Covariance,
    Histogram,
    Mean,
    Statistic,
    Variance,
)
from flhe.analytics.survival import KaplanMeier
from flhe.errors import ConfigError, ProtocolError
from flhe.mods import records
from flhe.training.query import Query

STATISTICS: tuple[type[Statistic], ...] = (
    *(Count, Mean, Variance, Covariance, Histogram, Below, Contingency, KaplanMeier),
)
"""Statistics that a node answers."""

CUTS = 255
"""Thresholds of one query for one order statistic: five queries take 2**40 values."""

Load = Callable[[Context], Table]


class Sums(Protocol):
    """Interface that asks queries: `flhe.strategies.SecureSum`."""

    def sum(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return a query's total: its `arrays`, and `senders`, a hash of the answers' senders."""


def answers(
    schema: Schema, load: Load
) -> dict[str, Callable[[ConfigRecord, Context], ArrayRecord]]:
    """Return a node's answers by query name, for `HEMod(queries=...)` or `query_app`.

    `load` returns this site's table. A query with an unknown parameter or another schema is
    refused: the same question must not come in two spellings.
    """
    return {kind.name: partial(_answer, kind, schema, load) for kind in STATISTICS}


def _answer(
    kind: type[Statistic], schema: Schema, load: Load, asked: ConfigRecord, context: Context
) -> ArrayRecord:
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in asked.items()}
    if given.pop("schema", None) != schema.hash():
        raise ConfigError("the analyst's schema differs from this site's app's")
    statistic = kind(**given)
    said, own = (Query.of(kind.name, p).hash() for p in (asked, statistic.parameters(schema)))
    if said != own:
        raise ConfigError("a parameter is not in flhe's own spelling")
    return records.from_numpy(statistic.answer(schema, load(context)))


def ask(secure: Sums, schema: Schema, statistic: Statistic) -> Any:
    """Return the statistic of all sites' rows, by one secure sum.

    Raises ConfigError: only members read its sum (`save_sealed`, `flhe open`, then
    `statistic.result(schema, arrays)`); others as `SecureSum.sum`.
    """
    return _result(secure.sum(statistic.name, statistic.parameters(schema)), schema, statistic)


def _result(total: Any, schema: Schema, statistic: Statistic) -> Any:
    if isinstance(total.arrays, records.SealedArrays):
        raise ConfigError(
            f"the total of {statistic.name!r} is sealed for the members: keep it with save_sealed, "
            "have one open it (flhe open), and pass its arrays to result(schema, arrays)"
        )
    return statistic.result(schema, records.to_numpy(total.arrays))


def quantiles(
    secure: Sums,
    schema: Schema,
    column: str,
    shares: Sequence[float] | NDArray[np.float64],
    *,
    cuts: int = CUTS,
) -> NDArray[np.float64]:
    """Return quantiles of a real column as `numpy.quantile` interpolates, shape (shares,).

    A search finds them all at once. Each query counts the values below `cuts` thresholds for each
    order statistic, until each is known to (high - low) / 2**37. So the analyst learns exact values
    of single rows, as with any quantile.

    Raises ConfigError: a share outside 0 to 1, or no rows; ProtocolError: sites dropped out or
    returned in between, so the counts are of different rows: ask again with other `cuts`; others as
    `ask`.
    """
    if not len(shares) or not all(0 <= share <= 1 for share in shares):
        raise ConfigError("quantiles: shares must be from 0 to 1")
    real, one = schema.column(column, Real), 1 << FRACTION
    answered = set[tuple[int, bytes]]()

    def inner(low: int, high: int) -> set[int]:
        return {low + (high - low) * k // (cuts + 1) for k in range(1, cuts + 1)} - {low, high}

    def count(thresholds: Iterable[int]) -> dict[int, int]:
        """Return the number of values at or below each threshold."""
        statistic = Below(column, tuple(sorted(thresholds)))
        total = secure.sum(statistic.name, statistic.parameters(schema))
        rows, counts = _result(total, schema, statistic)
        answered.add((rows, total.senders))
        if len(answered) > 1:
            raise ProtocolError(
                "quantiles: other sites answered this time than before: ask again, with other `cuts`, "
                "because sites answer each question once"
            )
        return dict(zip(statistic.thresholds, counts.tolist(), strict=True))

    below = count(inner(-one - 1, one))
    [(rows, _)] = answered
    if rows < 1:
        raise ConfigError("quantiles: the sites have no rows")
    places = np.asarray(shares, np.float64) * (rows - 1)
    ranks = sorted({int(r) for place in places for r in (np.floor(place), np.ceil(place))})
    # Bounds, for each rank from 0, of the smallest threshold that more than `rank` values do not
    # exceed: above the first, at most the second.
    spans = dict.fromkeys(ranks, (-one - 1, one))
    while below:
        for rank, (low, high) in spans.items():
            tried = [t for t in below if low < t < high]
            under = [t for t in tried if below[t] <= rank]
            over = [t for t in tried if below[t] > rank]
            spans[rank] = max([low, *under]), min([high, *over])
        wanted = {t for low, high in spans.values() for t in inner(low, high)}
        below = count(wanted) if wanted else {}
    value = {rank: real.middle + real.half * high / one for rank, (_, high) in spans.items()}
    first = np.array([value[int(np.floor(place))] for place in places])
    second = np.array([value[int(np.ceil(place))] for place in places])
    return np.asarray(first + (second - first) * (places - np.floor(places)))

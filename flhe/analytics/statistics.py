"""Statistics: what a site adds to each of them, and what all sites' sum says.

    answer    one site's table -> arrays of integers, which add
    result    their sums       -> the statistic

`result(answer(pooled table))` is the statistic of the pooled table: there is no other formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.analytics.schema import FRACTION, MAX_ROWS, Choice, Real, Schema, Table
from flhe.errors import ConfigError, ProtocolError, RangeError

Sums = Mapping[str, NDArray[Any]]
ONE = float(1 << FRACTION)


@dataclass(frozen=True)
class Statistic:
    """One statistic, with its parameters; a query of the same name asks for it.

    Raises ConfigError, when it is checked against a schema: a column that is not there, or of a kind
    that it does not take.
    """

    name: ClassVar[str]

    def parameters(self, schema: Schema) -> dict[str, Any]:
        """What nodes are told: its own parameters, as they are asked, and the schema's hash."""
        self.check(schema)
        own = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
        given = {name: value for name, value in own.items() if value not in ([], "")}
        return {**given, "schema": schema.hash()}

    def check(self, schema: Schema) -> None:
        """Refuse a schema that it cannot be asked of."""

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """What one site adds."""
        raise NotImplementedError

    def result(self, schema: Schema, sums: Sums) -> Any:
        """What the sums of all sites say."""
        raise NotImplementedError


def rows_of(table: Table) -> int:
    """How many rows a table has; RangeError where columns differ, or there are too many."""
    lengths = {len(column) for column in table.values()}
    if len(lengths) != 1:
        raise RangeError(
            "the columns of this site's table have different lengths, or there are none"
        )
    (rows,) = lengths
    if rows > MAX_ROWS:
        raise RangeError(f"a table of more than {MAX_ROWS} rows: sums have no room for it")
    return rows


def total_rows(sums: Sums) -> int:
    """How many rows all sites have together; ProtocolError where that cannot be."""
    rows = int(sums["rows"].item())
    if not 0 <= rows <= MAX_ROWS:
        raise ProtocolError("the sites have more rows together than sums have room for")
    return rows


def whole(*numbers: Any) -> NDArray[np.int64]:
    """Integers of Python or NumPy as an array."""
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Count(Statistic):
    """How many rows there are."""

    name: ClassVar[str] = "count"

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Under "rows", shape (1,)."""
        return {"rows": whole(rows_of(table))}

    def result(self, schema: Schema, sums: Sums) -> int:
        """The number of rows."""
        return total_rows(sums)


class Moments(NamedTuple):
    """Of one column: rows, mean, and variance with n - 1 below; NaN where rows are too few."""

    rows: int
    mean: float
    variance: float = math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class Mean(Statistic):
    """Mean of a real column."""

    name: ClassVar[str] = "mean"

    column: str

    def check(self, schema: Schema) -> None:
        """A real column."""
        schema.column(self.column, Real)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Under "rows" and "sum", shape (1,) each."""
        values = schema.column(self.column, Real).scaled(schema.take(table, self.column))
        return {"rows": whole(rows_of(table)), "sum": whole(values.sum())}

    def result(self, schema: Schema, sums: Sums) -> Moments:
        """Rows and mean, and the variance if there are squares."""
        column, rows, total = schema.column(self.column, Real), total_rows(sums), sums["sum"].item()
        mean = _mean(column, total, rows)
        if "squares" not in sums or rows < 2:
            return Moments(rows, mean)
        spread = _central(sums["squares"].tolist(), total, total, rows) * column.half**2
        return Moments(rows, mean, spread)


def _mean(column: Real, total: int, rows: int) -> float:
    return column.middle + column.half * (total / rows / ONE) if rows else math.nan


@dataclass(frozen=True)
class Variance(Mean):
    """Mean and variance of a real column."""

    name: ClassVar[str] = "variance"

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Under "squares" too, shape (2,)."""
        values = schema.column(self.column, Real).scaled(schema.take(table, self.column))
        return {**Mean.answer(self, schema, table), "squares": whole(*_product(values, values))}


def _product(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[int, int]:
    """Sum of products of scaled values, exactly: what is above FRACTION bits, and what is below."""
    exact = int(np.dot(one.astype(object), other.astype(object))) if one.size else 0
    return divmod(exact, 1 << FRACTION)


def _central(product: Sequence[int], one: int, other: int, rows: int) -> float:
    """Covariance out of sums, with n - 1 below. In Python's integers: nothing cancels."""
    high, low = product
    exact = (high << FRACTION) + low
    return (rows * exact - one * other) / (rows * (rows - 1) << 2 * FRACTION)


class Covariances(NamedTuple):
    """Of several columns: rows, means (k,), covariance with n - 1 below and correlation (k, k)."""

    rows: int
    means: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @property
    def correlation(self) -> NDArray[np.float64]:
        """Covariance of standardized columns; NaN for one that does not vary."""
        deviations = np.sqrt(np.diag(self.covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.covariance / np.outer(deviations, deviations))


@dataclass(frozen=True)
class Covariance(Statistic):
    """Covariance matrix of real columns."""

    name: ClassVar[str] = "covariance"

    columns: tuple[str, ...]

    def check(self, schema: Schema) -> None:
        """Two real columns or more, each once: a message of many names would take a site hours."""
        if len(self.columns) < 2 or len(set(self.columns)) != len(self.columns):
            raise ConfigError("Covariance: two columns or more, each once")
        for name in self.columns:
            schema.column(name, Real)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Shapes: rows (1,), sums (k,), products (k, k, 2)."""
        scaled = [schema.column(n, Real).scaled(schema.take(table, n)) for n in self.columns]
        products = [[_product(a, b) for b in scaled] for a in scaled]
        sums = whole(*(column.sum() for column in scaled))
        return {
            "rows": whole(rows_of(table)),
            "sums": sums,
            "products": np.array(products, np.int64),
        }

    def result(self, schema: Schema, sums: Sums) -> Covariances:
        """Rows, means, covariances."""
        columns = [schema.column(name, Real) for name in self.columns]
        rows, totals, products = total_rows(sums), sums["sums"].tolist(), sums["products"].tolist()
        size = len(columns)
        means = np.array([_mean(c, t, rows) for c, t in zip(columns, totals, strict=True)])
        covariance = np.full((size, size), math.nan)
        if rows > 1:
            for i, j in np.ndindex(size, size):
                central = _central(products[i][j], totals[i], totals[j], rows)
                covariance[i, j] = central * columns[i].half * columns[j].half
        return Covariances(rows, means, covariance)


@dataclass(frozen=True)
class Histogram(Statistic):
    """Counts of a real column between edges, as `numpy.histogram` has them."""

    name: ClassVar[str] = "histogram"

    column: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(map(float, self.edges)))

    def check(self, schema: Schema) -> None:
        """A real column; two edges or more, which ascend."""
        schema.column(self.column, Real)
        if len(self.edges) < 2 or any(not a < b for a, b in pairwise(self.edges)):
            raise ConfigError("Histogram: two edges or more, each above the one before")

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Under "counts", shape (edges - 1,)."""
        rows_of(table)
        counts, _ = np.histogram(schema.take(table, self.column), np.array(self.edges))
        return {"counts": counts.astype(np.int64)}

    def result(self, schema: Schema, sums: Sums) -> NDArray[np.int64]:
        """Rows between edges; the last bin has its upper edge in it."""
        return np.asarray(sums["counts"], np.int64)


@dataclass(frozen=True)
class Below(Statistic):
    """How many values of a real column are at most each threshold: what quantiles are found by.

    `thresholds` are integers of 2**-FRACTION, from -1 at the column's `low` to 1 at its `high`.
    """

    name: ClassVar[str] = "below"

    column: str
    thresholds: tuple[int, ...]

    def check(self, schema: Schema) -> None:
        """A real column; thresholds that ascend, and are written in one way."""
        schema.column(self.column, Real)
        if any(type(threshold) is not int for threshold in self.thresholds):
            raise ConfigError("Below: integers")
        if not self.thresholds or list(self.thresholds) != sorted(set(self.thresholds)):
            raise ConfigError("Below: thresholds that ascend, each once")

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Shapes: rows (1,), counts (thresholds,)."""
        values = np.sort(schema.column(self.column, Real).scaled(schema.take(table, self.column)))
        counts = np.searchsorted(values, np.array(self.thresholds, np.int64), side="right")
        return {"rows": whole(rows_of(table)), "counts": counts.astype(np.int64)}

    def result(self, schema: Schema, sums: Sums) -> tuple[int, NDArray[np.int64]]:
        """Rows, and how many of them are at most each threshold."""
        return total_rows(sums), np.asarray(sums["counts"], np.int64)


class Crossed(NamedTuple):
    """A contingency table: counts (rows' values, columns' values), and Pearson's test of it."""

    counts: NDArray[np.int64]

    @property
    def chi_square(self) -> tuple[float, int, float]:
        """Statistic without a correction, degrees of freedom, p-value; NaN where a margin is empty."""
        counts = self.counts.astype(np.float64)
        expected = np.outer(counts.sum(1), counts.sum(0)) / max(counts.sum(), 1.0)
        freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
        if not np.all(expected > 0):
            return math.nan, freedom, math.nan
        statistic = float(((counts - expected) ** 2 / expected).sum())
        return statistic, freedom, chi_square_tail(statistic, freedom)


@dataclass(frozen=True)
class Contingency(Statistic):
    """Counts of each pair of values of two columns of choices."""

    name: ClassVar[str] = "contingency"

    rows: str
    columns: str

    def check(self, schema: Schema) -> None:
        """Two columns of choices."""
        for name in (self.rows, self.columns):
            schema.column(name, Choice)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Under "counts", shape (rows' values, columns' values)."""
        shape = tuple(schema.column(n, Choice).count for n in (self.rows, self.columns))
        rows_of(table)
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, (schema.take(table, self.rows), schema.take(table, self.columns)), 1)
        return {"counts": counts}

    def result(self, schema: Schema, sums: Sums) -> Crossed:
        """The table."""
        return Crossed(np.asarray(sums["counts"], np.int64))


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X >= statistic) of a chi-square variable, by the recurrence of the incomplete gamma function.

    Source: NIST, Digital Library of Mathematical Functions, 8.8.6.
    """
    half = statistic / 2
    if freedom % 2:
        tail, order = math.erfc(math.sqrt(half)), 0.5
    else:
        tail, order = math.exp(-half), 1.0
    while order < freedom / 2:
        tail += math.exp(order * math.log(half) - half - math.lgamma(order + 1)) if half else 0.0
        order += 1
    return tail

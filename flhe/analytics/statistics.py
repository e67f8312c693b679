"""Statistics: each site's part, and the result of all sites' sum.

    answer    one site's table -> arrays of integers, which add
    result    their sums       -> the statistic

`result(answer(pooled table))` is the statistic of the pooled table: there is no second formula.
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
    """One statistic with its parameters; it is the query's name too.

    Raises ConfigError when checked against a schema: a column is missing or of an unsuitable kind.
    """

    name: ClassVar[str]

    def parameters(self, schema: Schema) -> dict[str, Any]:
        """Return a query's parameters: the statistic's own, and the schema's hash."""
        self.check(schema)
        own = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
        given = {name: value for name, value in own.items() if value not in ([], "")}
        return {**given, "schema": schema.hash()}

    def check(self, schema: Schema) -> None:
        """Refuse a schema without the needed columns."""

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return one site's part of the sums."""
        raise NotImplementedError

    def result(self, schema: Schema, sums: Sums) -> Any:
        """Return the statistic from all sites' sums."""
        raise NotImplementedError


def rows_of(table: Table) -> int:
    """Return a table's number of rows; RangeError if columns differ, or there are too many."""
    lengths = {len(column) for column in table.values()}
    if len(lengths) != 1:
        raise RangeError(
            "the columns of this site's table must have one length, and there must be a column"
        )
    (rows,) = lengths
    if rows > MAX_ROWS:
        raise RangeError(f"a table may have {MAX_ROWS} rows: sums would overflow with more")
    return rows


def total_rows(sums: Sums) -> int:
    """Return the rows of all sites together; ProtocolError if impossible."""
    rows = int(sums["rows"].item())
    if not 0 <= rows <= MAX_ROWS:
        raise ProtocolError("the sites together have more rows than sums have room for")
    return rows


def whole(*numbers: Any) -> NDArray[np.int64]:
    """Return integers of Python or NumPy as an array."""
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Count(Statistic):
    """Number of rows."""

    name: ClassVar[str] = "count"

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return the rows under "rows", shape (1,)."""
        return {"rows": whole(rows_of(table))}

    def result(self, schema: Schema, sums: Sums) -> int:
        """Return the number of rows."""
        return total_rows(sums)


class Moments(NamedTuple):
    """Rows, mean and variance (n - 1) of one column; NaN for too few rows."""

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
        """Require a real column."""
        schema.column(self.column, Real)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return rows and sum, shape (1,) each."""
        values = schema.column(self.column, Real).scaled(schema.take(table, self.column))
        return {"rows": whole(rows_of(table)), "sum": whole(values.sum())}

    def result(self, schema: Schema, sums: Sums) -> Moments:
        """Return rows and mean, and the variance if there are squares."""
        column, rows, total = schema.column(self.column, Real), total_rows(sums), sums["sum"].item()
        mean = _mean(column, total, rows)
        if "squares" not in sums or rows < 2:
            return Moments(rows, mean)
        spread = _central(sums["squares"].tolist(), total, total, rows)
        return Moments(rows, mean, spread * column.half * column.half)


def _mean(column: Real, total: int, rows: int) -> float:
    return column.middle + column.half * (total / rows / ONE) if rows else math.nan


@dataclass(frozen=True)
class Variance(Mean):
    """Mean and variance of a real column."""

    name: ClassVar[str] = "variance"

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return "squares" too, shape (2,)."""
        values = schema.column(self.column, Real).scaled(schema.take(table, self.column))
        return {**Mean.answer(self, schema, table), "squares": whole(*_product(values, values))}


def _product(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[int, int]:
    """Return the exact sum of products of scaled values: above FRACTION bits, and below."""
    exact = int(np.dot(one.astype(object), other.astype(object))) if one.size else 0
    return divmod(exact, 1 << FRACTION)


def _central(product: Sequence[int], one: int, other: int, rows: int) -> float:
    """Return the covariance (n - 1) from sums. Python's integers avoid cancellation."""
    high, low = product
    exact = (high << FRACTION) + low
    return (rows * exact - one * other) / (rows * (rows - 1) << 2 * FRACTION)


class Covariances(NamedTuple):
    """Rows, means (k,), covariance (n - 1) and correlation (k, k) of several columns."""

    rows: int
    means: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @property
    def correlation(self) -> NDArray[np.float64]:
        """Covariance of standardized columns; NaN for a constant one."""
        deviations = np.sqrt(np.diag(self.covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self.covariance / np.outer(deviations, deviations)
        return np.asarray(np.clip(found, -1, 1))


@dataclass(frozen=True)
class Covariance(Statistic):
    """Covariance matrix of real columns."""

    name: ClassVar[str] = "covariance"

    columns: tuple[str, ...]

    def check(self, schema: Schema) -> None:
        """Require two real columns or more, in order of names: one question has one spelling.

        Each once: too many names would take a site hours.
        """
        if len(self.columns) < 2 or list(self.columns) != sorted(set(self.columns)):
            raise ConfigError(
                "Covariance: expected two columns or more, in order of names, each once"
            )
        for name in self.columns:
            schema.column(name, Real)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return rows (1,), sums (k,) and products (k, k, 2)."""
        scaled = [schema.column(n, Real).scaled(schema.take(table, n)) for n in self.columns]
        products = [[_product(a, b) for b in scaled] for a in scaled]
        sums = whole(*(column.sum() for column in scaled))
        return {
            "rows": whole(rows_of(table)),
            "sums": sums,
            "products": np.array(products, np.int64),
        }

    def result(self, schema: Schema, sums: Sums) -> Covariances:
        """Return rows, means and covariances."""
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
    """Counts of a real column between edges, as of `numpy.histogram`."""

    name: ClassVar[str] = "histogram"

    column: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        # + 0.0 makes -0.0 zero: one question has one spelling.
        object.__setattr__(self, "edges", tuple(float(edge) + 0.0 for edge in self.edges))

    def check(self, schema: Schema) -> None:
        """Require a real column, and two ascending edges or more, within its bounds.

        Edges beyond them would be other spellings of one question.
        """
        real = schema.column(self.column, Real)
        if not all(real.low <= edge <= real.high for edge in self.edges):
            raise ConfigError(
                f"Histogram: expected edges from {real.low:g} to {real.high:g}, the column's bounds"
            )
        if len(self.edges) < 2 or any(not a < b for a, b in pairwise(self.edges)):
            raise ConfigError("Histogram: expected two edges or more, each above the previous one")

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return the counts under "counts", shape (edges - 1,)."""
        rows_of(table)
        counts, _ = np.histogram(schema.take(table, self.column), np.array(self.edges))
        return {"counts": counts.astype(np.int64)}

    def result(self, schema: Schema, sums: Sums) -> NDArray[np.int64]:
        """Return the rows between edges; the last bin includes its upper edge."""
        return np.asarray(sums["counts"], np.int64)


@dataclass(frozen=True)
class Below(Statistic):
    """Values of a real column at or below each threshold, for `quantiles`.

    `thresholds` are integers of 2**-FRACTION, from -1 at the column's `low` to 1 at its `high`.
    """

    name: ClassVar[str] = "below"

    column: str
    thresholds: tuple[int, ...]

    def check(self, schema: Schema) -> None:
        """Require a real column, and ascending thresholds in their only spelling."""
        schema.column(self.column, Real)
        if any(type(threshold) is not int for threshold in self.thresholds):
            raise ConfigError("Below: integers")
        if not self.thresholds or list(self.thresholds) != sorted(set(self.thresholds)):
            raise ConfigError("Below: expected ascending thresholds, each once")

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return rows (1,) and counts (thresholds,)."""
        values = np.sort(schema.column(self.column, Real).scaled(schema.take(table, self.column)))
        counts = np.searchsorted(values, np.array(self.thresholds, np.int64), side="right")
        return {"rows": whole(rows_of(table)), "counts": counts.astype(np.int64)}

    def result(self, schema: Schema, sums: Sums) -> tuple[int, NDArray[np.int64]]:
        """Return rows, and the number at or below each threshold."""
        return total_rows(sums), np.asarray(sums["counts"], np.int64)


class Crossed(NamedTuple):
    """Contingency table: counts (rows' values, columns' values), and Pearson's test."""

    counts: NDArray[np.int64]

    @property
    def chi_square(self) -> tuple[float, int, float]:
        """Return statistic (uncorrected), degrees of freedom, p-value; NaN for an empty margin."""
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
        """Require two columns of choices, in order of names: one question has one spelling."""
        if self.rows >= self.columns:
            raise ConfigError(
                f"Contingency: expected two columns in order of names: {self.columns!r} before "
                f"{self.rows!r}"
            )
        for name in (self.rows, self.columns):
            schema.column(name, Choice)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return the counts under "counts", shape (rows' values, columns' values)."""
        shape = tuple(schema.column(n, Choice).count for n in (self.rows, self.columns))
        rows_of(table)
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, (schema.take(table, self.rows), schema.take(table, self.columns)), 1)
        return {"counts": counts}

    def result(self, schema: Schema, sums: Sums) -> Crossed:
        """Return the table."""
        return Crossed(np.asarray(sums["counts"], np.int64))


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Return P(X >= statistic) of a chi-square variable, by the incomplete gamma's recurrence.

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
    return min(tail, 1.0)

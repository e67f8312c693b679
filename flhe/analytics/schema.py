"""Schema: columns of every site's table, and their permitted values.

It is part of the app, so all sites and the analyst share it; its hash is a parameter of each query.
The app fixes the bounds. An analyst able to move them would learn from refusals on which side of a
bound a patient lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, NotFiniteError, RangeError
from flhe.wire.derive import hash_of

Table = Mapping[str, NDArray[Any]]
"""One site's rows: columns of one length, by name."""

FRACTION = 36
"""Fractional bits of a real value, in units of half its column's range."""
MAX_ROWS = 1 << (62 - FRACTION)
"""Maximum rows of all sites together, so that sums do not overflow."""


@dataclass(frozen=True, slots=True)
class Real:
    """A column of real numbers from `low` to `high`, both finite; rounded to (high - low) / 2**37."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(
                f"Real({self.low}, {self.high}): expected two finite numbers, the lower one first"
            )
        if not math.isfinite(self.high - self.low) or not math.isfinite(self.high + self.low):
            raise ConfigError(f"Real({self.low}, {self.high}): the range exceeds that of floats")
        ends = np.array([self.low, self.high], np.float64)
        if self.scaled(ends).tolist() != [-1 << FRACTION, 1 << FRACTION]:
            raise ConfigError(
                f"Real({self.low}, {self.high}): floats this large do not resolve so small a "
                "range; subtract its lower end"
            )

    @property
    def middle(self) -> float:
        """Midpoint of its bounds."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half of its range: one unit of `scaled`."""
        return (self.high - self.low) / 2

    def take(self, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return its values, shape (rows,).

        Raises RangeError: out of bounds, or no number; NotFiniteError: NaN or infinity.
        """
        taken = _floats(name, values)
        if not np.all(np.isfinite(taken)):
            raise NotFiniteError(f"column {name!r} holds NaN or infinity: leave such rows out")
        if np.any(taken < self.low) or np.any(taken > self.high):
            raise RangeError(f"column {name!r} holds a value outside the bounds of its schema")
        return taken

    def scaled(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return values from -1 at `low` to 1 at `high`, as integers of 2**-FRACTION."""
        shares = (values - self.middle) / self.half
        return np.rint(shares * (1 << FRACTION)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Whole:
    """A column of whole numbers from `low` to `high`: days, visits."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.low < self.high < self.low + (1 << 20):
            raise ConfigError(
                f"Whole({self.low}, {self.high}): expected low < high, and at most 2**20 values"
            )

    @property
    def count(self) -> int:
        """Number of possible values."""
        return self.high - self.low + 1

    def take(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return its values from 0 on, shape (rows,); RangeError if out of bounds or not whole."""
        taken = np.asarray(values)
        if taken.dtype.kind == "u" and taken.size and int(taken.max()) > self.high:
            raise RangeError(f"column {name!r} holds a value outside the bounds of its schema")
        whole = (
            taken.astype(np.int64, copy=False) if taken.dtype.kind in "iub" else _whole(name, taken)
        )
        if taken.size and not self.low <= int(whole.min()) <= int(whole.max()) <= self.high:
            raise RangeError(f"column {name!r} holds a value outside the bounds of its schema")
        return whole - self.low


def _floats(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    if np.asarray(values).dtype.kind in "cmM":  # NumPy would drop imaginary parts and units of time
        raise RangeError(
            f"column {name!r} holds complex numbers, dates or durations: give it as real numbers"
        )
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):  # their texts may hold a cell's value
        raise RangeError(f"column {name!r} holds a value that is not a number") from None


def _whole(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    values = _floats(name, values)
    if not np.all(np.isfinite(values)) or np.any(values != np.rint(values)):
        raise RangeError(f"column {name!r} holds a value that is not a whole number")
    return values.astype(np.int64)


class Choice:
    """A column of categories: a stage, a sex, an event (0 or 1)."""

    def __init__(self, *values: str | int) -> None:
        if len(values) < 2 or len(set(values)) != len(values):
            raise ConfigError("Choice: expected two values or more, each once")
        self.values = values

    @property
    def count(self) -> int:
        """Number of possible values."""
        return len(self.values)

    def take(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return each value's index among the choices, shape (rows,); RangeError for any other."""
        taken, places = np.asarray(values), np.full(len(values), -1, np.int64)
        with suppress(TypeError):  # pandas' NA compares with nothing, so no place is found
            for place, value in enumerate(self.values):
                places[taken == value] = place
        if np.any(places < 0):
            raise RangeError(
                f"column {name!r} holds a value that is not one of its schema's choices"
            )
        return places


Column = Real | Whole | Choice


class Schema:
    """Columns by name: `Schema(age=Real(0, 120), died=Choice(0, 1))`."""

    def __init__(self, **columns: Column) -> None:
        self.columns = columns

    def column(self, name: str, *kinds: type) -> Any:
        """Return the column of this name; ConfigError if missing or not one of `kinds`."""
        found = self.columns.get(name)
        if found is None:
            raise ConfigError(f"no column {name!r} in the schema: it has {', '.join(self.columns)}")
        if not isinstance(found, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"column {name!r} must be {wanted}, not {type(found).__name__}")
        return found

    def take(self, table: Table, name: str) -> NDArray[Any]:
        """Return a column of one site's table, shape (rows,), checked by `Column.take`.

        Raises RangeError: a column of another dimension, or with masked cells.
        """
        if name not in table:
            raise ConfigError(f"this site's table has no column {name!r}, which the schema names")
        cells = np.asarray(table[name])
        if cells.ndim != 1:
            raise RangeError(
                f"column {name!r} must have one dimension, and has {cells.ndim}: flatten it"
            )
        if np.ma.is_masked(table[name]):  # the array would show what the mask hides
            raise RangeError(f"column {name!r} holds masked cells: leave such rows out")
        return self.columns[name].take(name, cells)

    def hash(self) -> bytes:
        """SHA-256 of all columns, 32 bytes: sites and analyst must have the same schema."""
        said = [[name, repr(_said(column))] for name, column in sorted(self.columns.items())]
        return hash_of("schema", said)


def _said(column: Column) -> tuple[object, ...]:
    bounds = column.values if isinstance(column, Choice) else (column.low, column.high)
    return type(column).__name__, *bounds

"""Query: a sum that an analyst requests, without training: a count, a histogram, a table.

A query's name and parameters are its history: every member answers from the question only, and one
sum of each question is opened (docs/protocol.md, Queries). The slot binds the form of the answers:
answers of different forms never add up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.flatten import Layout
from flhe.coding.quantize import EXTRA_BITS
from flhe.errors import ConfigError, NotFiniteError, RangeError, ReplyError
from flhe.schemes.base import MAX_COHORT
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import SecureSum
from flhe.training.epoch_sums import EpochSums
from flhe.training.kind import Kind, exact_lanes, exact_part, exact_sums
from flhe.training.schedule import Settings, SettingsField, Value
from flhe.training.terms import Terms
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, Rule, at_most, matching
from flhe.wire.printable import printable
from flhe.wire.record import Form, Record

MAX_PARAMETERS = 1 << 20
MAX_FORM = 2048
"""Maximum size of an answer's form in bytes: it is kept with the claim of its slot."""
MAX_VALUES = 1 << 24
"""Maximum numbers in one answer."""
MAX_SHOWN = 160
"""Maximum characters of a query in the audit log."""
NOTHING = Layout(())
"""Layout of the absent model: a federation that answers queries trains none."""
_ROOM = EXTRA_BITS - MAX_COHORT.bit_length()
"""Maximum bits of a float's integer, so that no sum of a cohort overflows."""

_positive = Rule("a number, 0 or more", lambda value: 0 <= value < math.inf)


@dataclass(frozen=True, slots=True)
class Query(Record):
    """One question: its name, by which a site permits it, and its parameters.

    Raises ConfigError: an invalid name, or a parameter that is not a number, text or bytes.
    """

    FORM = Form("query", MAX_PARAMETERS, row=True, error=ConfigError)

    name: Annotated[str, matching("[a-z0-9][a-z0-9._-]{0,63}", "1 to 64 of a-z 0-9 . _ -")]
    settings: SettingsField

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Value]) -> Query:
        """Return the query of this name with these parameters."""
        return cls(name, Settings(parameters))

    @property
    def parameters(self) -> dict[str, Value]:
        """Return the parameters for the app, by name, in order."""
        return self.settings.at(1)

    def hash(self) -> bytes:
        """SHA-256 of name and parameters, 32 bytes."""
        return hash_of("query", *self.to_fields())

    def line(self) -> str:
        """Return the query as text, as far as a log has room for it."""
        told = json.dumps(self.parameters, default=bytes.hex, ensure_ascii=True)
        text = printable(f"{self.name} {told}")
        return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


@dataclass(frozen=True, slots=True)
class Part(Record):
    """One array of an answer.

    `bound` is the largest absolute value of one site's numbers, and `resolution` their step; both
    are 0 for integers, which are exact.
    """

    FORM = Form("array of an answer", row=True, error=ConfigError)

    name: Annotated[str, at_most(64, "characters")]
    shape: tuple[U32, ...]
    bound: Annotated[float, _positive] = 0.0
    resolution: Annotated[float, _positive] = 0.0

    def _validate(self) -> None:
        if (self.bound == 0) != (self.resolution == 0):
            raise ConfigError(
                f"array {self.name!r}: give both a bound and a resolution, or neither"
            )
        if self.bound and self.bound / self.resolution > 2**_ROOM:
            raise ConfigError(
                f"array {self.name!r}: {self.bound:g} in steps of {self.resolution:g} takes more "
                f"than the {_ROOM} bits of sums: choose a coarser resolution"
            )

    @property
    def size(self) -> int:
        """Number of its values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class AnswerForm(Record):
    """Common form of all answers to one query, independent of their values."""

    FORM = Form("form of an answer", MAX_FORM, row=True, error=ConfigError)

    parts: tuple[Part, ...]

    def _validate(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len(set(names)) != len(names) or self.size > MAX_VALUES:
            raise ConfigError(
                f"an answer must have arrays of different names, with up to {MAX_VALUES} values"
            )
        if len(self.to_bytes()) > MAX_FORM:  # before its claim, which is final
            raise ConfigError(
                "an answer has too many arrays, or names too long: merge some of them"
            )

    @property
    def size(self) -> int:
        """Number of values in an answer."""
        return sum(part.size for part in self.parts)

    def hash(self) -> bytes:
        """SHA-256 of it, 32 bytes: the layout hash in slots of answers."""
        return hash_of("answer-form", self.to_fields())

    def arrays(self, sums: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return sums as arrays: int64, or float64 for floats."""
        out: dict[str, NDArray[Any]] = {}
        at = 0
        for part in self.parts:
            numbers = sums[at : at + part.size].reshape(part.shape)
            out[part.name] = numbers * part.resolution if part.resolution else numbers
            at += part.size
        return out

    def errors(self, contributors: int) -> dict[str, float]:
        """Return each array's largest rounding error in a sum of so many answers; 0.0 is exact."""
        return {part.name: contributors * part.resolution / 2 for part in self.parts}


@dataclass(frozen=True, slots=True)
class Bounded:
    """An app's function that answers with floats, and their declared range.

    Parameters
    ----------
    answer : callable
        Function as for `HEMod`.
    bound : float
        Largest absolute value of one site's answer, for any data. A site with a larger value refuses
        to answer.
    resolution : float, optional
        Rounding step; by default the power of two that uses all available bits, about
        `bound` / 2**51.
    """

    answer: Callable[[Any, Any], Any]
    bound: float
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf or not 0 <= self.resolution < math.inf:
            raise ConfigError(
                "bounded(bound=..., resolution=...): both must be positive and finite"
            )
        if not self.resolution:
            finest = 2.0 ** (math.frexp(self.bound)[1] - _ROOM)
            object.__setattr__(self, "resolution", finest)


def encode(
    arrays: Mapping[str, NDArray[Any]], bounds: Bounded | None
) -> tuple[AnswerForm, NDArray[np.int64]]:
    """Return an app's answer as its form and exact integers, shape (form.size,).

    Raises ReplyError: arrays without numbers, or floats without `bounds`; NotFiniteError: NaN or
    infinity; RangeError: a float beyond its bound, or an integer beyond 63 bits.
    """
    parts, numbers = [], []
    for name, array in arrays.items():
        if array.dtype.kind in "iu":
            parts.append(Part(name, array.shape))
            numbers.append(_exact(array))
        elif array.dtype.kind != "f" or bounds is None:
            raise ReplyError(
                "a query is answered with integers, or with floats of a declared bound; array "
                f"{name!r} is {array.dtype}: round it, or give HEMod bounded(answer, bound)"
            )
        else:
            parts.append(Part(name, array.shape, bounds.bound, bounds.resolution))
            numbers.append(_rounded(array.astype(np.float64), bounds))
    return AnswerForm(tuple(parts)), np.concatenate([each.reshape(-1) for each in numbers])


def _exact(array: NDArray[Any]) -> NDArray[np.int64]:
    limit = (1 << EXTRA_BITS) - 1
    if array.size and not -limit <= int(array.min()) <= int(array.max()) <= limit:
        raise RangeError(f"an integer of the answer is beyond {EXTRA_BITS} bits")
    return array.astype(np.int64)


def _rounded(array: NDArray[np.float64], bounds: Bounded) -> NDArray[np.int64]:
    if not np.all(np.isfinite(array)):
        raise NotFiniteError("the answer holds NaN or infinity")
    if np.any(np.abs(array) > bounds.bound):
        raise RangeError("a number of the answer is beyond the bound that the app declares")
    return np.rint(array / bounds.resolution).astype(np.int64)


QUERY = Kind("query", lambda terms, of: exact_lanes(terms, 1, of), valued=False)
"""The sum of a query's answers; its form gives their number of values."""


def sum_of(sums: EpochSums, query: Query, form: AnswerForm, number: int, attempt: int) -> SecureSum:
    """Return the sum of answers to a query, the `number`-th one of its federation."""
    of = sums.sum(QUERY, number, attempt, query.hash(), form.hash())
    return replace(of, length=of.length + exact_lanes(sums.terms, form.size, sums.layout))


def part_of(terms: Terms, numbers: NDArray[np.int64]) -> Plain:
    """Return one site's answer before encryption: the count of contributions, 1, then its numbers."""
    return exact_part(terms, np.concatenate([[np.int64(1)], numbers]))


def read(terms: Terms, total: Sealed, lanes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers in an opened sum, shape (form.size,).

    Raises ProtocolError: these senders cannot have produced them; SumRangeError: a sum beyond 63
    bits of terms within them.
    """
    return exact_sums(terms, total, lanes)[COUNT + 1 :]

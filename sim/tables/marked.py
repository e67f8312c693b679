"""A number and where it comes from.

Every number of a table carries a mark. One that is made of several carries the weakest of theirs:
seconds measured and multiplied by rounds that were counted are measured; with a link that nobody
used they are projected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flhe.errors import ConfigError

Mark = Literal["counted", "measured", "sampled", "projected", "published"]
"""Where a number comes from, the firmest first.

- counted: exact, such as bytes of a ciphertext that was made, or of one whose length is known;
- measured: the whole of it was run here;
- sampled: a part of it was run here, and the rest is proportional to it;
- projected: a model says so, out of numbers of the other kinds: transfer over a link, convergence;
- published: the paper says so.
"""

MARKS: tuple[Mark, ...] = get_args(Mark)
LETTERS = {mark: mark[0] for mark in MARKS} | {"published": "†", "projected": "p"}
"""What stands behind a number in a table."""

LEGEND = ", ".join(f"{LETTERS[mark]} {mark}" for mark in MARKS)


@dataclass(frozen=True, slots=True)
class Marked:
    """A number with its mark. Arithmetic keeps the weakest mark.

    Parameters
    ----------
    value : float
        Finite.
    mark : Mark
        Where it comes from.
    """

    value: float
    mark: Mark

    def __post_init__(self) -> None:
        if self.mark not in MARKS:
            raise ConfigError(f"mark={self.mark!r}: choose from {', '.join(MARKS)}")
        if not math.isfinite(self.value):
            raise ConfigError(f"value={self.value}: a number in a table is finite")

    def __add__(self, other: Marked | float) -> Marked:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Marked | float) -> Marked:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Marked | float) -> Marked:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Marked | float) -> Marked:
        return self._with(other, lambda a, b: a / b)

    __radd__, __rmul__ = __add__, __mul__

    def _with(self, other: Marked | float, how: Callable[[float, float], float]) -> Marked:
        if not isinstance(other, Marked):
            return Marked(how(self.value, other), self.mark)
        return Marked(how(self.value, other.value), weakest(self.mark, other.mark))

    def to_json(self) -> list[Any]:
        """[value, mark]."""
        return [self.value, self.mark]

    @classmethod
    def from_json(cls, found: Any) -> Marked:
        """Read what `to_json` gave."""
        value, mark = found
        return cls(float(value), mark)


def weakest(*marks: Mark) -> Mark:
    """The mark of what is made of numbers with these marks.

    Raises
    ------
    ConfigError
        No mark; or a paper's number among ours: such a number would stand for neither.
    """
    if not marks:
        raise ConfigError("no marks: a number is made of at least one")
    if "published" in marks and set(marks) != {"published"}:
        raise ConfigError("a published number and one of ours do not mix: show them side by side")
    return max(marks, key=MARKS.index)


def counted(value: float) -> Marked:
    """An exact number."""
    return Marked(value, "counted")


def measured(value: float) -> Marked:
    """The whole was run."""
    return Marked(value, "measured")


def sampled(value: float) -> Marked:
    """A part was run."""
    return Marked(value, "sampled")


def projected(value: float) -> Marked:
    """A model says so."""
    return Marked(value, "projected")


def published(value: float) -> Marked:
    """The paper says so."""
    return Marked(value, "published")

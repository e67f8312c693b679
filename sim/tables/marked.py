"""A number and where it comes from.

Every number of a table carries a mark. One that is made of several carries the weakest of theirs:
seconds measured and multiplied by rounds that were counted are measured; with a link that nobody
used they are projected.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from flhe.errors import ConfigError

Mark = Literal["counted", "measured", "sampled", "projected", "published"]
"""Where a number comes from, the firmest first; LEGEND says what each one means."""

MARKS: tuple[Mark, ...] = get_args(Mark)
_MEANINGS: dict[Mark, str] = {
    "counted": "the number is exact, such as the bytes of a ciphertext",
    "measured": "all of it ran on this machine",
    "sampled": "a part of it ran on this machine, and the rest is in proportion",
    "projected": "a model computes it from other numbers, such as seconds on a described link",
    "published": "a paper states it",
}

LEGEND = "The small word behind a number says where the number comes from:\n\n" + "".join(
    f"- *{mark}*: {_MEANINGS[mark]}\n" for mark in MARKS
)
"""Markdown for every page with a table; marks are whole words, since a letter looks like a unit."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A number with its mark. Arithmetic keeps the weakest mark."""

    value: float  # Finite
    mark: Mark  # Where it comes from

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


def weakest(*marks: Mark) -> Mark:
    """The mark of what is made of numbers with these marks.

    Raises ConfigError: a paper's number among ours: such a number would stand for neither.
    """
    if "published" in marks and set(marks) != {"published"}:
        raise ConfigError("a published number and one of ours do not mix: show them side by side")
    return max(marks, key=MARKS.index)


counted, measured, sampled, projected, published = (
    functools.partial(Marked, mark=mark) for mark in MARKS
)


def proportional(number: Marked, factor: float) -> Marked:
    """A number of `factor` times as many values: sampled unless the factor is 1."""
    if factor == 1.0:
        return number
    return Marked(number.value * factor, weakest(number.mark, "sampled"))

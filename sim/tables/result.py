"""What a table or a figure says: entries, one number each and its mark; as CSV and Markdown.

A mark says where a number comes from. One that is made of several carries the weakest of theirs:
seconds measured and multiplied by rounds that were counted are measured; with a link that nobody used
they are projected.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flhe.errors import ConfigError
from flhe_lab.tables.chart import Chart, Own

Mark = Literal["counted", "measured", "sampled", "projected", "published", "derived"]
"""Where a number comes from, the firmest first; LEGEND says what each one means."""

MARKS: tuple[Mark, ...] = get_args(Mark)
PAPERS: tuple[Mark, ...] = ("published", "derived")  # Marks of a paper's numbers

_MEANINGS: dict[Mark, str] = {
    "counted": "the number is exact, such as the bytes of a ciphertext",
    "measured": "all of it ran on this machine",
    "sampled": "a part of it ran on this machine, and the rest is in proportion",
    "projected": "a model computes it from other numbers, such as seconds on a described link",
    "published": "a paper states it",
    "derived": "computed here from numbers that a paper states",
}

LEGEND = "The small word behind a number says where the number comes from:\n\n" + "".join(
    f"- *{mark}*: {_MEANINGS[mark]}\n" for mark in MARKS
)
"""Markdown for every page with a table; marks are whole words, since a letter looks like a unit."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A number with its mark. Arithmetic keeps the weakest mark.

    What is made of two published numbers is derived; a bare factor changes the unit only.
    """

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
    papers = [mark in PAPERS for mark in marks]
    if any(papers) != all(papers):
        raise ConfigError("a published number and one of ours do not mix: show them side by side")
    return "derived" if len(marks) > 1 and papers[0] else max(marks, key=MARKS.index)


counted, measured, sampled, projected, published, derived = (
    functools.partial(Marked, mark=mark) for mark in MARKS
)


def proportional(number: Marked, factor: float) -> Marked:
    """A number of `factor` times as many values: sampled unless the factor is 1."""
    if factor == 1.0:
        return number
    return Marked(number.value * factor, weakest(number.mark, "sampled"))


Group = Literal["ours", "peer", "paper"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One number."""

    row: str  # What it is about: "CNN (1.20M)", "dropout 0.3". In a figure, the place on the axis.
    who: str  # Whose: "FLASHE", "TenSEAL BFV, n = 8192", "Pai+bat"
    group: Group  # Ours; somebody else's code on this machine; what the paper says
    what: str  # The quantity: "encrypt", "traffic". One column.
    unit: str  # Of the number: "s", "MB", "x", "" for a mere count
    number: Marked  # The number and where it comes from
    x: float | None = None  # Place on a numeric axis, for lines

    def __post_init__(self) -> None:
        if (self.group == "paper") != (self.number.mark in PAPERS):
            raise ConfigError(
                f"{self.row}, {self.who}, {self.what}: a paper's number is published or derived, "
                "and no other is"
            )


@dataclass(frozen=True, slots=True)
class Result:
    """One table or figure."""

    name: str  # File name without its ending: "flashe-table-2"
    source: str  # "FLASHE, Table 2"
    title: str  # What it shows, in a few words
    entries: tuple[Entry, ...]
    """In the order of rows; columns come in the order of their first entry."""
    chart: Chart | Own | None = None  # How it is drawn; None where it is a table only
    notes: tuple[str, ...] = ()  # Setting, what differs from the paper's, what the paper leaves out

    def __post_init__(self) -> None:
        if not self.entries:
            raise ConfigError(f"{self.name}: has no entries; leave it out instead")
        times = Counter((e.row, e.who, e.group, e.what) for e in self.entries)
        (most, count) = times.most_common(1)[0]
        if count > 1:
            raise ConfigError(f"{self.name}: two entries for {', '.join(most)}")


def to_csv(result: Result) -> str:
    """One line a number, its mark among the fields."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("row", "who", "group", "what", "unit", "value", "mark", "x"))
    for e in result.entries:
        x = "" if e.x is None else repr(e.x)
        value = repr(e.number.value)
        writer.writerow((e.row, e.who, e.group, e.what, e.unit, value, e.number.mark, x))
    return out.getvalue()


def to_markdown(result: Result) -> str:
    """One line a row and who, one column a quantity; a small word behind each number is its mark."""
    columns = list(dict.fromkeys((e.what, e.unit) for e in result.entries))
    lines = list(dict.fromkeys((e.row, e.group, e.who) for e in result.entries))
    cells = {(e.row, e.group, e.who, e.what, e.unit): e.number for e in result.entries}
    heads = ["", "", *(f"{what}, {unit}" if unit else what for what, unit in columns)]
    out = [_line(heads), _line(["---", "---", *["---:"] * len(columns)])]
    before = ""
    for row, group, who in lines:
        said = f"*paper:* {who}" if group == "paper" else who
        numbers = [cells.get((row, group, who, *column)) for column in columns]
        shown = ["" if n is None else f"{short(n.value)} <sup>{n.mark}</sup>" for n in numbers]
        out.append(_line(["" if row == before else row, said, *shown]))
        before = row
    return "\n".join(out) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def short(value: float) -> str:
    """Three or four digits that count; whole numbers below a billion in full."""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    formats = ((1000, ",.0f"), (100, ".1f"), (1, ".2f"), (0.001, ".3g"), (0, ".2g"))
    return format(value, next(shape for least, shape in formats if abs(value) >= least))


def ratios(
    entries: Sequence[Entry], what: str, to: str, *, group: Group | None = None
) -> tuple[Entry, ...]:
    """For each row, everybody's `what` divided by that of `to`: entries "`what`, ratio", unit "x".

    A paper's numbers are divided by the paper's own of that name, ours and peers' by ours; the ratio of
    `to` is 1. With `group`, only entries of that group. A ratio that is among `entries` stays as told.
    """
    told = {(e.row, e.who, e.group) for e in entries if e.what == f"{what}, to {to}"}
    base: dict[tuple[str, bool], Marked] = {}
    for e in entries:
        if e.what == what and e.who == to:
            base[e.row, e.group == "paper"] = e.number
    out = []
    for e in entries:
        one = base.get((e.row, e.group == "paper"))
        asked = group in (None, e.group) and (e.row, e.who, e.group) not in told
        if e.what == what and one is not None and one.value and asked:
            number = e.number / one
            out.append(Entry(e.row, e.who, e.group, f"{what}, to {to}", "x", number, e.x))
    return tuple(out)

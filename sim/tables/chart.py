"""How a result is drawn: lines, dots or bars, in the style of `flhe_app.style`.

Nothing here measures. A point of which not all was run (sampled, projected) is hollow.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flhe_app import style
from flhe_lab.advise.toml_files import load_toml
from flhe_lab.tables.axes import Look, label_ends, logarithmic, nth_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flhe_lab.tables.result import Entry, Result

MARKERS = {
    "o": "\u25cf",
    "s": "\u25a0",
    "D": "\u25c6",
    "^": "\u25b2",
    "v": "\u25bc",
    "P": "\u271a",
    "X": "\u2716",
}
"""Of rows of dots, in order, and as text; colours are the contenders'."""

FIRM = ("counted", "measured", "published", "derived")
"""Marks of numbers that were run in whole, here or by the paper."""

MANY = 12
"""Points of a line that each have a marker; of more, some have one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """How to draw."""

    kind: Literal["lines", "dots", "bars"]
    """lines: a line for each contender over Entry.x; dots: a line of the picture for each contender, a
    dot for each row; both have a panel for each of `whats`. bars: a named bar for each row."""
    whats: tuple[str, ...]  # Quantities that are drawn
    says: str  # The title: a sentence that says what to see
    log: bool = False  # Logarithmic sizes
    log_x: bool = False  # Logarithmic axis of lines
    xlabel: str = ""  # What the axis of lines is


Own = Callable[[Path], None]
"""In place of a chart: draws the picture at the path that it is given."""


# --- the title ---

NUMBER = re.compile(r"\[([^]|]+)\|([^]|]+)(?:\|([^]|]+))?\]")
"""[quantity|contender] is the contender's number, [quantity|one|other] is one's divided by other's.
Both are ranges over rows. A contender is a name, "name (paper)" or "name@row"; * is all but the
paper."""


def filled(says: str, entries: Sequence[Entry]) -> str:
    """Return a title with its numbers, which come from the entries."""

    def values(what: str, of: str) -> dict[str, float]:
        who, _, row = of.partition("@")
        found = {
            e.row: e.number.value
            for e in entries
            if e.what == what and who in (name(e.who, e.group), "*" * (e.group != "paper"))
        }
        return {"": found[row]} if row else found

    def number(match: re.Match[str]) -> str:
        what, one, other = match.groups()
        mine = values(what, one)
        if other:
            theirs = values(what, other)
            mine = {row: mine[row] / theirs[row] for row in mine if row in theirs}
        shown = list(dict.fromkeys(_rounded(value) for value in sorted(mine.values())))
        return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"

    return NUMBER.sub(number, says)


def _rounded(value: float) -> str:
    if value >= 10:
        return f"{value:,.0f}"
    digits = 3 if 0.95 <= value < 1.1 else 2
    return f"{value:.{digits}g}"


# --- the picture ---

KEY = "Filled: all of it ran."
HOLLOW = "Hollow: sampled or projected."
THEIRS = "(paper): the paper's own number."


def draw(result: Result, path: Path) -> None:
    """Draw a result with a chart into an SVG; ConfigError where it cannot be written."""
    chart = result.chart
    assert chart is not None
    if not isinstance(chart, Chart):
        chart(path)
        return
    shown = [e for e in result.entries if e.what in chart.whats]
    if chart.kind == "lines":
        shown = [e for e in shown if e.x is not None]
    parts = [f"{result.source}: {result.title}."]
    if chart.kind != "bars" and any(e.number.mark not in FIRM for e in shown):
        parts += [KEY, HOLLOW]
    if any(e.group == "paper" for e in shown) and chart.kind != "bars":
        parts.append(THEIRS)
    {"bars": _bars, "lines": _lines, "dots": _dots}[chart.kind](chart, shown, path, " ".join(parts))


@functools.cache
def _declared() -> dict[str, Any]:
    return load_toml(Path(__file__).with_name("looks.toml"))


def look(name: str, spare: int = 0) -> Look:
    """Return the look of a contender; `spare` counts those of a picture that have none of their own."""
    declared = _declared()
    looks, variants = declared["looks"], declared["variants"]
    parts = [part for part in looks if part in name]
    if "Flower" in parts:
        return Look(*looks["Flower"])
    if not parts:
        return nth_look(spare)
    found = Look(*looks[min(parts, key=lambda part: (name.index(part), -len(part)))])
    return found._replace(line=next((variants[v] for v in variants if v in name), found.line))


def name(who: str, group: str) -> str:
    """Return a contender's name in a picture."""
    return f"{who} (paper)" if group == "paper" else who


def _panels(chart: Chart, shown: Sequence[Entry]) -> list[list[Entry]]:
    panels = [[e for e in shown if e.what == what] for what in chart.whats]
    return [panel for panel in panels if panel]


def _title(panel: Sequence[Entry]) -> str:
    first = panel[0]
    return f"{first.what}, {first.unit}" if first.unit else first.what


def _face(entry: Entry, ink: str) -> str:
    return ink if entry.number.mark in FIRM else style.PAGE[0]


def _bars(chart: Chart, shown: Sequence[Entry], path: Path, footer: str) -> None:
    """Draw our number as a bar from 1, and the paper's as a diamond."""
    from flhe_lab.tables.result import short

    rows = list(dict.fromkeys(e.row for e in shown))
    footer += " Diamonds: the papers' own numbers."
    with style.drawn(path, chart.says, 0.9 + 0.36 * len(rows), footer=footer) as (_, (axis,)):
        for y, row in enumerate(rows):
            ink = style.colour(look(row, 6).colour)
            mine = [e for e in shown if e.row == row]
            value = next(e.number.value for e in mine if e.group != "paper")
            said, most = f"{short(value)}x", max(1.0, *(e.number.value for e in mine), value)
            axis.barh(y, value - 1, left=1, height=0.55, color=ink)
            for e in (e for e in mine if e.group == "paper"):
                axis.plot(
                    e.number.value, y, "D", color=style.TEXT[0], markerfacecolor=style.PAGE[0]
                )
                said += f" (paper: {short(e.number.value)}x)"
            axis.text(most * 1.35, y, said, va="center", fontsize=8, fontweight="bold", color=ink)
        logarithmic(axis.xaxis)
        axis.set_yticks(range(len(rows)), [textwrap.fill(row, 58) for row in rows], fontsize=7.5)
        axis.set(
            ylim=(len(rows) - 0.4, -0.6),
            xlabel="times as much: less on the left, more on the right of 1",
        )
        axis.set_xlim(right=axis.get_xlim()[1] * 4)
        axis.axvline(1, color=style.MUTED[0], linewidth=1)
        axis.grid(visible=False, axis="y")


def _lines(chart: Chart, shown: Sequence[Entry], path: Path, footer: str) -> None:
    panels = _panels(chart, shown)
    who = list(dict.fromkeys((e.who, e.group) for e in shown))
    spare = {key: i for i, key in enumerate(who)}
    height = max(3.4, 1.2 + 0.19 * len(who))
    with style.drawn(path, chart.says, height, grid=(1, len(panels)), footer=footer) as (_, axes):
        for axis, panel in zip(axes, panels, strict=True):
            ends = []
            for key in who:
                mine = sorted(
                    (e for e in panel if (e.who, e.group) == key), key=lambda e: e.x or 0.0
                )
                if not mine:
                    continue
                ink = _line(axis, mine, key, spare[key])
                ends.append((name(*key), ink, mine[-1].x or 0.0, mine[-1].number.value))
            axis.set(xlabel=chart.xlabel, title=_title(panel))
            if chart.log_x:
                logarithmic(axis.xaxis)
            if chart.log:
                logarithmic(axis.yaxis)
            if axis is axes[-1] or len(ends) < len(who):
                label_ends(axis, ends)


def _line(axis: Axes, mine: Sequence[Entry], key: tuple[str, str], spare: int) -> str:
    """Draw one contender's line; returns its colour."""
    own = look(key[0], spare)
    ink, paper = style.colour(own.colour), key[1] == "paper"
    xs, ys = [e.x or 0.0 for e in mine], [e.number.value for e in mine]
    wide = 4.0 if own.colour == "grey" and not paper else 1.6
    axis.plot(xs, ys, ":" if paper else own.line, color=ink, linewidth=wide, zorder=2 - (wide > 2))
    for at, e in enumerate(mine):
        if len(mine) <= MANY or (at + spare) % (len(mine) // 6) == 0:
            axis.plot(
                xs[at],
                ys[at],
                own.marker,
                color=ink,
                markerfacecolor=_face(e, ink),
                markersize=4.5,
            )
    return ink


def _dots(chart: Chart, shown: Sequence[Entry], path: Path, footer: str) -> None:
    panels = _panels(chart, shown)
    rows = list(dict.fromkeys(e.row for e in shown))
    who = sorted(dict.fromkeys((e.who, e.group) for e in shown), key=lambda key: key[1] == "paper")
    ours = sum(group != "paper" for _, group in who)
    place = {each: i + 0.5 * (i >= ours) for i, each in enumerate(who)}
    marks = zip(rows, MARKERS.values(), strict=False)
    key = (
        "  ".join(f"{mark} {row}".replace(" ", "\u00a0") for row, mark in marks)
        if len(rows) > 1
        else ""
    )
    height = 1.4 + 0.24 * len(who) + 0.2 * -(-len(key) // 112)
    how: dict[str, Any] = {"grid": (1, len(panels)), "key": key, "footer": footer, "sharey": True}
    with style.drawn(path, chart.says, height, **how) as (_, axes):
        for axis, panel in zip(axes, panels, strict=True):
            for i, each in enumerate(who):
                if mine := [e for e in panel if (e.who, e.group) == each]:
                    ink = style.colour(look(each[0], i).colour)
                    _row(axis, mine, place[each], ink, rows)
            axis.set_title(_title(panel))
            axis.margins(x=0.08 if key else 0.25)
            if chart.log:
                logarithmic(axis.xaxis)
            else:
                axis.set_xlim(left=0)
        axes[0].set_yticks([*place.values()], [name(*each) for each in who])
        axes[0].set_ylim(max(place.values()) + 0.6, -0.6)


def _row(axis: Axes, mine: Sequence[Entry], y: float, ink: str, rows: Sequence[str]) -> None:
    from flhe_lab.tables.result import short

    values = [e.number.value for e in mine]
    axis.plot([min(values), max(values)], [y, y], color=ink, linewidth=1.2)
    for e in mine:
        how = {"color": ink, "markerfacecolor": _face(e, ink)}
        marker = [*MARKERS][rows.index(e.row) % len(MARKERS)]
        axis.plot(e.number.value, y, marker, **how)  # type: ignore[arg-type]
        if len(rows) < 2:
            beside = {"textcoords": "offset points", "va": "center", "color": ink, "fontsize": 8}
            axis.annotate(short(e.number.value), (e.number.value, y), (6, 0), **beside)  # type: ignore[arg-type]

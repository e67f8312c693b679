"""How a result is drawn: lines, dots or bars. What the paper published is drawn pale.

Nothing here measures. A point of which not all was run (sampled, projected) is hollow.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flhe_lab.bench import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flhe_lab.tables.result import Entry, Result

MARKERS = "osD^vP*"
"""Of rows of dots, in order; colours are theirs too."""

FIRM = ("counted", "measured", "published", "derived")
"""Marks of numbers that were run in whole, here or by the paper."""


@dataclass(frozen=True, slots=True)
class Chart:
    """How to draw."""

    kind: Literal["lines", "dots", "bars"]
    """lines: a line for everybody over Entry.x, a panel for each of `whats`; dots: a line for
    everybody, a dot for each row, a panel for each of `whats`; bars: a named bar for every entry."""
    whats: tuple[str, ...]  # Quantities that are drawn
    log: bool = False  # Logarithmic sizes
    log_x: bool = False  # Logarithmic axis of lines
    xlabel: str = ""  # What the axis of lines is


Own = Callable[[Path], None]
"""In place of a chart: draws the PNG at the path that it is given."""


def draw(result: Result, path: Path) -> None:
    """Draw a result with a chart into a PNG; ConfigError where it cannot be written."""
    chart = result.chart
    assert chart is not None
    if not isinstance(chart, Chart):
        chart(path)
        return
    shown = [e for e in result.entries if e.what in chart.whats]
    if chart.kind == "bars":
        _bars(chart, f"{result.source}: {result.title}", shown, path)
        return
    if chart.kind == "lines":
        shown = [e for e in shown if e.x is not None]
    panels = [[e for e in shown if e.what == what] for what in chart.whats]
    panels = [panel for panel in panels if panel]
    who = list(dict.fromkeys((e.who, e.group) for e in shown))
    across = min(len(panels), 3) if chart.kind == "lines" else len(panels)
    down = -(-len(panels) // across)
    size = (2.2 + 2.3 * across, 0.9 + 0.2 * len(who))
    if chart.kind == "lines":
        size = (2.9 * across + 1.1, 2.5 * down + 0.6 + 0.11 * len(who))
    with figures.drawn(path, *size) as figure:
        axes = figure.subplots(down, across, squeeze=False, sharey=chart.kind == "dots")
        (_lines if chart.kind == "lines" else _dots)(chart, figure, axes, panels, who)
        if any(e.number.mark not in FIRM for e in shown):
            figure.supxlabel("hollow: sampled or projected; pale: of the paper", fontsize=7)


def _bars(chart: Chart, title: str, shown: Sequence[Entry], path: Path) -> None:
    from flhe_lab.tables.result import short

    with figures.drawn(path, 8.0, 0.6 + 0.3 * len(shown)) as figure:
        axis = figure.subplots()
        start = 1.0 if chart.log else 0.0
        names = {e.row: y for y, e in reversed([*enumerate(shown)])}
        for y, e in enumerate(shown):
            theirs, value = e.group == "paper", e.number.value
            look = {"color": figures.COLOURS[theirs], "alpha": 0.4 if theirs else 1.0}
            axis.barh(y, value - start, left=start, **look)  # type: ignore[arg-type]
            said = f" {short(value)}{e.unit}" + (f" in the paper: {e.who}" if theirs else "")
            axis.text(max(value, start), y, said, va="center", fontsize=7)
        axis.set_yticks([*names.values()], [textwrap.fill(row, 64) for row in names], fontsize=7)
        axis.set(xscale="log" if chart.log else "linear", title=title, ylim=(len(shown), -1))
        axis.margins(x=0.3)
        axis.grid(visible=False)


Who = Sequence[tuple[str, str]]
"""(who, group) of everybody."""
Panels = Sequence[Sequence["Entry"]]


def _name(who: str, group: str) -> str:
    return f"{who} (paper)" if group == "paper" else who


def _title(panel: Sequence[Entry]) -> str:
    first = panel[0]
    return f"{first.what}, {first.unit}" if first.unit else first.what


def _mark(axis: Axes, entry: Entry, x: float, y: float, marker: str, colour: str) -> None:
    axis.plot(
        x,
        y,
        linestyle="",
        marker=marker,
        markersize=5,
        color=colour,
        markerfacecolor=colour if entry.number.mark in FIRM else "white",
        alpha=0.4 if entry.group == "paper" else 1.0,
    )


def _lines(chart: Chart, figure: Figure, axes: Any, panels: Panels, who: Who) -> None:
    for spare in list(axes.flat)[len(panels) :]:
        spare.set_visible(False)
    named: dict[str, Any] = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for i, key in enumerate(who):
            mine = [(e.x or 0.0, e.number.value, e) for e in panel if (e.who, e.group) == key]
            mine.sort(key=lambda point: point[0])
            colour, pale = figures.COLOURS[i % len(figures.COLOURS)], key[1] == "paper"
            style: dict[str, Any] = {"color": colour, "linestyle": ":" if pale else "-"}
            style["alpha"] = 0.4 if pale else 1.0
            (line,) = axis.plot([x for x, _, _ in mine], [y for _, y, _ in mine], **style)
            named.setdefault(_name(*key), line)
            for x, y, entry in mine:
                _mark(axis, entry, x, y, "o", colour)
        axis.set(xlabel=chart.xlabel, ylabel=_title(panel))
        axis.set_xscale("log" if chart.log_x else "linear")
        axis.set_yscale("log" if chart.log else "linear")
    figure.legend(named.values(), named, loc="outside upper center", ncols=min(len(named), 3))


def _dots(chart: Chart, figure: Figure, axes: Any, panels: Panels, who: Who) -> None:
    from matplotlib.lines import Line2D

    rows = list(dict.fromkeys(e.row for panel in panels for e in panel))
    styles = {row: (MARKERS[i % 7], figures.COLOURS[i % 7]) for i, row in enumerate(rows)}
    for axis, panel in zip(axes.flat, panels, strict=True):
        for e in panel:
            _mark(axis, e, e.number.value, who.index((e.who, e.group)), *styles[e.row])
        axis.set_xlabel(_title(panel))
        if chart.log:
            axis.set_xscale("log")
        else:
            left, right = axis.get_xlim()
            axis.set_xlim(min(left, 0.0), right + 0.04 * abs(right))
    axes.flat[0].set_yticks(range(len(who)), [_name(*key) for key in who])
    axes.flat[0].set_ylim(len(who) - 0.4, -0.6)
    if len(rows) > 1:
        handles = [
            Line2D([], [], linestyle="", marker=marker, color=colour, label=row)
            for row, (marker, colour) in styles.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(rows), 3))

"""How a result is drawn: bars, stacked bars, lines or dots. What the paper published is drawn pale.

Nothing here measures. A bar or point of which not all was run (sampled, projected) is hollow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flhe_lab.bench import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flhe_lab.tables.result import Entry, Result

MARKERS = "osD^vP*"
"""Of rows of dots, in order; colours are theirs too."""

FIRM = ("counted", "measured")
"""Marks of numbers that were run in whole."""


@dataclass(frozen=True, slots=True)
class Chart:
    """How to draw.

    Parameters
    ----------
    kind : "bars", "stacked", "lines", "dots" or "own"
        bars: rows beside each other, a bar for everybody, a panel for each of `whats`; stacked: one
        panel a row, a bar for everybody, `whats` on top of each other; lines: a line for everybody
        over Entry.x, a panel for each of `whats`; dots: a line for everybody, a dot for each row, a
        panel for each of `whats`: for more contenders than bars would hold.
    whats : tuple of str
        Quantities that are drawn.
    log : bool
        Logarithmic heights.
    log_x : bool
        Logarithmic axis of lines.
    xlabel : str
        What the axis of lines is.
    own : callable, optional
        With kind "own": draws the PNG at the path that it is given, of what the section holds.
    """

    kind: Literal["bars", "stacked", "lines", "dots", "own"]
    whats: tuple[str, ...]
    log: bool = False
    log_x: bool = False
    xlabel: str = ""
    own: Callable[[Path], None] | None = None


def draw(result: Result, path: Path) -> None:
    """Draw a result with a chart into a PNG; ConfigError where it cannot be written."""
    chart = result.chart
    assert chart is not None
    if chart.own is not None:
        chart.own(path)
    elif chart.kind == "dots":
        _dots([e for e in result.entries if e.what in chart.whats], chart, path)
    else:
        _drawn(result, chart, path)


def _drawn(result: Result, chart: Chart, path: Path) -> None:
    shown = [e for e in result.entries if e.what in chart.whats]
    if chart.kind == "lines":
        shown = [e for e in shown if e.x is not None]
    who: list[tuple[str, str]] = list(dict.fromkeys((e.who, e.group) for e in shown))
    colours = {key: figures.COLOURS[i % len(figures.COLOURS)] for i, key in enumerate(who)}
    rows = list(dict.fromkeys(e.row for e in shown))
    panels = rows if chart.kind == "stacked" else [w for w in chart.whats if _of(shown, w)]
    with figures.look():
        across = min(len(panels), 3)
        down = -(-len(panels) // across)
        figure = figures.new(2.9 * across + 1.1, 2.5 * down + 0.6 + 0.11 * len(who))
        axes: Any = figure.subplots(down, across, squeeze=False)
        flat: list[Axes] = list(axes.flat)
        for spare in flat[len(panels) :]:
            spare.set_visible(False)
        for axis, panel in zip(flat, panels, strict=False):
            if chart.kind == "stacked":
                _stacked(axis, [e for e in shown if e.row == panel], chart.whats, who)
                axis.set_title(panel)
            elif chart.kind == "lines":
                _lines(axis, _of(shown, panel), who, colours)
                axis.set(xlabel=chart.xlabel)
            else:
                _bars(axis, _of(shown, panel), rows, who, colours)
            unit = next(e.unit for e in shown if chart.kind == "stacked" or e.what == panel)
            what = "" if chart.kind == "stacked" else panel
            axis.set_ylabel(f"{what}, {unit}" if what and unit else what or unit)
            if chart.log:
                axis.set_yscale("log")
            if chart.log_x and chart.kind == "lines":
                axis.set_xscale("log")
        handles, labels = flat[0].get_legend_handles_labels()
        for axis in flat[1:]:
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles, labels = [*handles, handle], [*labels, label]
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 3) or 1)
        hollow = any(e.number.mark not in (*FIRM, "published") for e in shown)
        if hollow:
            figure.supxlabel("hollow: sampled or projected", fontsize=7)
        figures.save(figure, path)


def _of(entries: Sequence[Entry], what: str) -> list[Entry]:
    return [e for e in entries if e.what == what]


def _name(who: str, group: str) -> str:
    return f"{who} (paper)" if group == "paper" else who


def _style(entry: Entry, colour: str) -> dict[str, Any]:
    """Filled where it was run, hollow where not, pale where the paper says so."""
    if entry.group == "paper":
        return {"facecolor": colour, "alpha": 0.35, "edgecolor": "none"}
    if entry.number.mark in FIRM:
        return {"facecolor": colour, "edgecolor": colour}
    return {"facecolor": "white", "edgecolor": colour, "hatch": "////"}


def _bars(
    axis: Axes,
    entries: Sequence[Entry],
    rows: Sequence[str],
    who: Sequence[tuple[str, str]],
    colours: dict[tuple[str, str], str],
) -> None:
    width = 0.8 / max(len(who), 1)
    for i, key in enumerate(who):
        label = _name(*key)
        for e in entries:
            if (e.who, e.group) != key:
                continue
            at = rows.index(e.row) - 0.4 + width * (i + 0.5)
            axis.bar(at, e.number.value, width, label=label, **_style(e, colours[key]))
            label = "_"  # once in the legend
    axis.set_xticks(range(len(rows)), rows)
    if sum(map(len, rows)) > 40:
        axis.tick_params(axis="x", rotation=30)
    axis.grid(visible=False, axis="x")


def _stacked(
    axis: Axes, entries: Sequence[Entry], whats: Sequence[str], who: Sequence[tuple[str, str]]
) -> None:
    there = [key for key in who if any((e.who, e.group) == key for e in entries)]
    for j, key in enumerate(there):
        floor = 0.0
        for i, what in enumerate(whats):
            for e in entries:
                if (e.who, e.group, e.what) != (*key, what):
                    continue
                style = _style(e, figures.COLOURS[i % len(figures.COLOURS)])
                label = what if what not in axis.get_legend_handles_labels()[1] else "_"
                axis.bar(j, e.number.value, 0.7, bottom=floor, label=label, **style)
                floor += e.number.value
    names = [_name(*key) for key in there]
    axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7)
    axis.grid(visible=False, axis="x")


def _lines(
    axis: Axes,
    entries: Sequence[Entry],
    who: Sequence[tuple[str, str]],
    colours: dict[tuple[str, str], str],
) -> None:
    for key in who:
        mine = sorted(
            ((e.x, e) for e in entries if (e.who, e.group) == key and e.x is not None),
            key=lambda pair: pair[0],
        )
        if not mine:
            continue
        xs, ys = [x for x, _ in mine], [e.number.value for _, e in mine]
        pale = key[1] == "paper"
        colour = colours[key]
        how: dict[str, Any] = {"color": colour, "alpha": 0.4 if pale else 1.0}
        axis.plot(xs, ys, linestyle=":" if pale else "-", label=_name(*key), **how)
        for x, e in mine:
            firm = e.number.mark in (*FIRM, "published")
            face = colour if firm else "white"
            axis.plot(x, e.number.value, marker="o", markersize=4, markerfacecolor=face, **how)


def _dots(shown: Sequence[Entry], chart: Chart, path: Path) -> None:
    from matplotlib.lines import Line2D

    who = list(dict.fromkeys((e.who, e.group) for e in shown))
    rows = list(dict.fromkeys(e.row for e in shown))
    panels = [what for what in chart.whats if any(e.what == what for e in shown)]
    with figures.look():
        figure = figures.new(2.2 + 2.3 * len(panels), 0.9 + 0.2 * len(who))
        axes: Any = figure.subplots(1, len(panels), squeeze=False, sharey=True)
        for axis, panel in zip(axes.flat, panels, strict=True):
            _dot_panel(axis, _of(shown, panel), who, rows, log=chart.log)
        names = [_name(*key) for key in who]
        axes.flat[0].set_yticks(range(len(who)), names)
        axes.flat[0].set_ylim(len(who) - 0.4, -0.6)
        handles = [
            Line2D(
                [], [], linestyle="", marker=MARKERS[i % 7], color=figures.COLOURS[i % 7], label=row
            )
            for i, row in enumerate(rows)
        ]
        if len(rows) > 1:
            figure.legend(handles=handles, loc="outside upper center", ncols=min(len(rows), 3))
        if any(e.number.mark not in (*FIRM, "published") for e in shown):
            figure.supxlabel("hollow: sampled or projected; pale: published", fontsize=7)
        figures.save(figure, path)


def _dot_panel(
    axis: Axes,
    entries: Sequence[Entry],
    who: Sequence[tuple[str, str]],
    rows: Sequence[str],
    *,
    log: bool,
) -> None:
    for e in entries:
        i = rows.index(e.row)
        colour = figures.COLOURS[i % len(figures.COLOURS)]
        firm = e.number.mark in FIRM or e.group == "paper"
        axis.plot(
            e.number.value,
            who.index((e.who, e.group)),
            linestyle="",
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            color=colour,
            markerfacecolor=colour if firm else "white",
            alpha=0.4 if e.group == "paper" else 1.0,
        )
    unit = entries[0].unit
    axis.set_xlabel(f"{entries[0].what}, {unit}" if unit else entries[0].what)
    if log:
        axis.set_xscale("log")
    else:
        left, right = axis.get_xlim()
        axis.set_xlim(min(left, 0.0), right + 0.04 * abs(right))

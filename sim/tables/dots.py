"""A line for everybody, a dot for each row: for more contenders than bars would hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.sim.bench import figures
from flhe.sim.tables.chart import FIRM, Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flhe.sim.tables.result import Entry

MARKERS = "osD^vP*"
"""Of rows, in order; colours are theirs too."""


def dots(entries: Sequence[Entry], whats: Sequence[str], *, log: bool = False) -> Chart:
    """A chart of those entries that are among `whats`, a panel for each, a line for everybody."""
    shown = tuple(e for e in entries if e.what in whats)
    return Chart("own", tuple(whats), log=log, own=lambda path: _draw(shown, whats, path, log=log))


def _draw(shown: Sequence[Entry], whats: Sequence[str], path: Path, *, log: bool) -> None:
    from matplotlib.lines import Line2D

    who = list(dict.fromkeys((e.who, e.group) for e in shown))
    rows = list(dict.fromkeys(e.row for e in shown))
    panels = [what for what in whats if any(e.what == what for e in shown)]
    with figures.look():
        figure = figures.new(2.2 + 2.3 * len(panels), 0.9 + 0.2 * len(who))
        axes: Any = figure.subplots(1, len(panels), squeeze=False, sharey=True)
        for axis, panel in zip(axes.flat, panels, strict=True):
            _panel(axis, [e for e in shown if e.what == panel], who, rows, log=log)
        names = [f"{name} (paper)" if group == "paper" else name for name, group in who]
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


def _panel(
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

"""The figure of `secure_aggregation`: a column for each panel, the client above, the server below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.sim import figures
from flhe.sim.aggregation_contenders import Setting
from flhe.sim.secure_aggregation import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ("-", "--", "-.", ":", (0, (1, 3)))
MARKS = ("o", "s", "^", "D", "v", "P")


def plot(panels: Sequence[Sweep], found: Mapping[Setting, Sequence[Point]], path: Path) -> None:
    """Draw it; a server projected from its parts is hollow."""
    names = list(dict.fromkeys(p.contender for points in found.values() for p in points))
    with figures.look():
        figure = figures.new(7.4, 4.8)
        grid = figure.subplots(2, len(panels), sharey="row", squeeze=False)
        for column, sweep in enumerate(panels):
            for row, side in enumerate(("client", "server")):
                axes = grid[row][column]
                _lines(axes, sweep, found, names, f"{side}_s")
                axes.set(yscale="log")
                if row == 0:
                    axes.set(title=sweep.title)
                else:
                    axes.set(xlabel="clients" if sweep.axis == "clients" else "dropout rate")
                if column == 0:
                    axes.set(ylabel=f"{side}, seconds")
        if any(p.projected for points in found.values() for p in points):
            figure.supxlabel("hollow: projected from parts", fontsize=7.5, color="#333333")
        handles = [
            grid[0][0].plot([], [], label=name, **_look(i))[0] for i, name in enumerate(names)
        ]
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
        figures.save(figure, path)


def _lines(
    axes: Axes,
    sweep: Sweep,
    found: Mapping[Setting, Sequence[Point]],
    names: Sequence[str],
    side: str,
) -> None:
    for i, name in enumerate(names):
        points = [p for s in sweep.settings for p in found[s] if p.contender == name]
        if not points:
            continue
        at = [getattr(p.setting, sweep.axis) for p in points]
        seconds = [getattr(p, side).median for p in points]
        look = _look(i)
        axes.plot(at, seconds, **{**look, "marker": ""})
        for x, y, point in zip(at, seconds, points, strict=True):
            hollow = point.projected and side == "server_s"
            axes.plot([x], [y], **look, markerfacecolor="white" if hollow else look["color"])


def _look(i: int) -> dict[str, Any]:
    """Colour, line and mark of contender `i`."""
    return {
        "color": figures.COLOURS[i % len(figures.COLOURS)],
        "linestyle": LINES[i % len(LINES)],
        "marker": MARKS[i % len(MARKS)],
        "markersize": 4,
    }

"""Axes of pictures: logarithmic ones, and lines with their looks, and names at their ends."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from flhe_app.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look(NamedTuple):
    """Look of one contender in every picture."""

    colour: str  # A key of COLOURS
    marker: str  # Matplotlib's
    line: str = "-"  # Matplotlib's


def nth_look(at: int) -> Look:
    """Return the look of a picture's n-th line, for what has none of its own."""
    looks = [*zip(COLOURS, "osD^Xv.", strict=True)]
    return Look(*looks[at % len(looks)])


def short(value: float) -> str:
    """Return a number as an axis has it: 0.01, 500, 20k, 3M."""
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / least * (10 if letter == 'k' else 1):g}{letter}"
    return f"{value:,g}" if value >= 1e-4 or value == 0 else f"{value:.0e}".replace("e-0", "e-")


def logarithmic(axis: Any) -> None:
    """Make an axis (`axes.xaxis` or `axes.yaxis`) logarithmic, with numbers that can be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    decades = max(high / low, 1.0001)
    subs = (1.0, 2.0, 5.0) if decades < 60 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=7 if decades >= 60 else 12))
    axis.set_major_formatter(FuncFormatter(lambda value, _at: short(value)))
    axis.set_minor_formatter(NullFormatter())


def label_ends(axes: Axes, ends: list[tuple[str, str, float, float]], size: float = 8) -> None:
    """Write each line's name at its end, apart from the others: (name, colour, x, y), of the data.

    A line that ends early has its name there. Call it last, when limits and scales are final.
    """
    figure = axes.get_figure()
    assert figure is not None
    figure.draw_without_rendering()  # type: ignore[union-attr]
    step = size * 1.3 / 72 / (axes.get_window_extent().height / figure.dpi)
    to = axes.transAxes.inverted()
    at = []
    for name, ink, x, y in ends:
        right, up = to.transform(axes.transData.transform((x, y)))
        at.append((float(up), float(right), name, ink, x, y))
    at.sort()
    early = [each for each in at if each[1] < 0.7]
    late = [each for each in at if each[1] >= 0.7]
    look: dict[str, Any] = {"fontsize": size, "va": "center", "annotation_clip": False}
    for _, _, name, ink, x, y in early:
        axes.annotate(name, (x, y), xytext=(6, -12), textcoords="offset points", color=ink, **look)
    places = [up for up, *_ in late]
    for _ in range(300):
        for i, (low, high) in enumerate(pairwise(places)):
            if high - low < step * 0.999:
                places[i], places[i + 1] = (low + high - step) / 2, (low + high + step) / 2
    for place, (_, _, name, ink, x, y) in zip(places, late, strict=True):
        line = {"arrowstyle": "-", "color": ink, "linewidth": 0.6, "shrinkB": 3}
        beside: dict[str, Any] = {
            "xytext": (1.05, place),
            "textcoords": "axes fraction",
            "arrowprops": line,
        }
        axes.annotate(name, (x, y), color=ink, **beside, **look)

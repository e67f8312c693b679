"""Figure of `fedml_tables`: seconds by model, and seconds and bytes by the share that is encrypted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flhe.sim import figures
from flhe.sim.fedml_models import MB
from flhe.sim.fedml_tables import Table4, Table7
from flhe.sim.fedml_ways import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "the paper's (8 cores, PALISADE)"
MARKERS = ("o", "s", "^", "v", "D")


def plot(four: Table4, seven: Table7, path: Path) -> None:
    """Draw Table 4's seconds over the model's length, Table 7's seconds and MB over p."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [PAPER, *dict.fromkeys(n for costs in [*four.values(), *seven.values()] for n in costs)]
    with figures.look():
        figure = figures.new(7.4, 3.2)
        sizes, seconds, nbytes = figure.subplots(1, 3)
        _by_model(sizes, four, names)
        _by_share(seconds, seven, names, [s.seconds for s in seven], lambda cost: cost.total_s)
        _by_share(
            nbytes,
            seven,
            names,
            [s.nbytes / MB for s in seven],
            lambda cost: cost.upload_bytes / MB,
        )
        sizes.set(title="s, all encrypted", xlabel="values", xscale="log", yscale="log")
        for axes, title in ((seconds, "s, Vision Transformer"), (nbytes, "MB, Vision Transformer")):
            axes.set(title=title, xlabel="share encrypted", yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        lines = {line.get_label(): line for axes in (seconds, sizes) for line in axes.get_lines()}
        figure.legend(
            list(lines.values()), [str(name) for name in lines], loc="outside upper center", ncols=3
        )
        figures.save(figure, path)


def _by_model(axes: Axes, found: Table4, names: Sequence[str]) -> None:
    at = [model.values for model in found]
    _line(axes, at, [model.he_s for model in found], names, PAPER, False)
    for name in next(iter(found.values()), {}):
        costs = [costs[name] for costs in found.values()]
        _line(axes, at, [cost.total_s for cost in costs], names, name, _sampled(costs))


def _by_share(
    axes: Axes,
    found: Table7,
    names: Sequence[str],
    paper: Sequence[float],
    of: Callable[[Cost], float],
) -> None:
    at = [selection.ratio for selection in found]
    _line(axes, at, paper, names, PAPER, False)
    for name in next(iter(found.values()), {}):
        costs = [costs[name] for costs in found.values()]
        _line(axes, at, [of(cost) for cost in costs], names, name, _sampled(costs))


def _line(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    names: Sequence[str],
    name: str,
    sampled: bool,
) -> None:
    """One way's line; dotted where some of it is projected from a sample."""
    i = names.index(name)
    axes.plot(
        x,
        y,
        ":" if sampled else "-",
        marker=MARKERS[i % len(MARKERS)],
        markersize=3.5,
        color=figures.COLOURS[i % len(figures.COLOURS)],
        label=name,
    )


def _sampled(costs: Sequence[Cost]) -> bool:
    return any(cost.origin == "sampled" for cost in costs)

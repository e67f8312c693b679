"""The figure of `flhe crowd`: seconds, bytes and memory over clients, and how they should grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flhe_lab.bench import figures
from flhe_lab.crowd.found import Found
from flhe_lab.crowd.report import FURTHER, QUANTITIES, Quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("processor, seconds", ("client, epoch", "client, round", "server, epoch", "server, round")),
    ("a client's traffic, kB", ("bytes of a client, epoch", "bytes of a client, round")),
    ("memory, MB", ("server's process", "one actor", "other processes", "all processes")),
)
"""Title, and the quantities that it shows."""


def plot(runs: Sequence[Found], path: Path) -> None:
    """Draw it: points are runs, lines the laws through them, dashed where nothing was run."""
    members = sorted(runs, key=lambda run: run.asked.clients)
    quantities = {quantity.name: quantity for quantity in QUANTITIES}
    with figures.look():
        figure = figures.new(9.2, 3.2)
        for axes, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            for i, name in enumerate(names):
                _line(axes, members, quantities[name], figures.COLOURS[i])
            axes.set(xscale="log", yscale="log", title=f"SASH: {title}", xlabel="clients")
            axes.legend(fontsize=6.5, loc="upper left")
        figure.supxlabel(
            "dashed: projected by the law; all processes: the sum of the three others",
            fontsize=7.5,
            color="#333333",
        )
        figures.save(figure, path)


def _line(axes: Axes, members: Sequence[Found], quantity: Quantity, colour: str) -> None:
    at = [run.asked.clients for run in members]
    axes.plot(
        at, [quantity.of(run) for run in members], "o", ms=4, color=colour, label=quantity.name
    )
    law = quantity.law(members)
    if law is None:
        return
    for low, high, style in ((at[0], at[-1], "-"), (at[-1], FURTHER * at[-1], "--")):
        xs = np.geomspace(low, high, 30)
        axes.plot(xs, [law.at(x) for x in xs], style, lw=1.0, color=colour)

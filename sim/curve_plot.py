"""The figure of learning curves: loss, accuracy, and what accuracy takes in uploads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flhe.sim.bench import figures
from flhe.sim.learning import SETTLED, Curve

BEYOND = 1.5
"""Losses that many times the first curve's highest leave the figure: its data has them."""


def plot(found: Sequence[Curve], task: str, path: Path, title: str = "") -> None:
    """Draw loss and accuracy by round, and accuracy by what the clients have uploaded."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    with figures.look():
        figure = figures.new(8.4, 3.4)
        by_loss, by_round, by_bytes = figure.subplots(1, 3)
        for at, curve in enumerate(found):
            accuracy, rounds = curve.series["accuracy"], range(1, curve.rounds + 1)
            sent = [total / 1e6 for total in itertools.accumulate(curve.series["bytes_up"])]
            style: dict[str, Any] = {
                "color": figures.COLOURS[(at - 1) % len(figures.COLOURS)],  # black for the first
                "linestyle": "--" if curve.arguments is None else "-",
                "label": _label(curve, found[0]),
                "zorder": 3 if curve.arguments is None else 2,
                "marker": "." if curve.rounds == 1 else "",
            }
            by_loss.plot(rounds, curve.series["loss"], **style)
            by_round.plot(rounds, accuracy, **style)
            by_bytes.plot(sent, accuracy, **style)
        for axes in (by_loss, by_round):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        by_loss.set(xlabel="round", ylabel="test loss")
        highest = BEYOND * max(found[0].series["loss"])
        if by_loss.get_ylim()[1] > highest:
            by_loss.set_ylim(0.95 * min(min(curve.series["loss"]) for curve in found), highest)
        by_round.set(xlabel="round", ylabel="test accuracy")
        by_bytes.set(xlabel="uploaded by all clients, MB", ylabel="test accuracy", xscale="log")
        by_bytes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        by_bytes.xaxis.set_major_formatter("{x:g}")
        by_bytes.xaxis.set_minor_formatter("")
        figure.legend(
            *by_round.get_legend_handles_labels(),
            loc="outside upper center",
            ncols=min(len(found), 2),
            title=f"{title or task}\naccuracy: mean of the last {SETTLED} rounds; how far off "
            f"{found[0].name} in any round",
            alignment="center",
        )
        figures.save(figure, path)


def _label(curve: Curve, first: Curve) -> str:
    """A curve's name, and what it reached."""
    short = f", {curve.rounds} rounds" if curve.rounds < first.rounds else ""
    told = f"{curve.name}{short}: {curve.settled:.3f}"
    return told if curve is first else f"{told}; at most {curve.gap(first):.4f} off"

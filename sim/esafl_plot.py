"""Figure of `esafl_tables`: traffic of an iteration and error of the sum, logarithmic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flhe.schemes.presets import DEFAULT_ESHE
from flhe.sim import figures
from flhe.sim.esafl_tables import COHORT, MB, Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, OURS = "paper, as counted", f"ours, {DEFAULT_ESHE}"
BARS = {
    "the paper's, unpacked": (PAPER, False),
    "the paper's, packed": (PAPER, True),
    f"ours, {DEFAULT_ESHE}": (OURS, True),
    "ours, rns-8192": ("ours, rns-8192", True),
}
"""Label -> encoding, and whether it is packed."""

TABLE_3_BITS = 16
WIDTH = 0.19
"""Of a bar."""


def plot(found: Results, path: Path) -> None:
    """Draw Table 3's traffic, model by model, and Table 4's errors, precision by precision."""
    with figures.look():
        figure = figures.new(7.4, 3.0)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _traffic(left, found)
        _errors(right, found)
        handles = [left.bar([0], [0], 0, color=figures.COLOURS[i]) for i in range(len(BARS))]
        figure.legend(handles, list(BARS), loc="outside upper center", ncols=2)
        figures.save(figure, path)


def _traffic(axes: Axes, found: Results) -> None:
    for at, model in enumerate(found):
        for i, (encoding, packed) in enumerate(BARS.values()):
            height = _row(found[model], encoding, packed, TABLE_3_BITS).traffic_mb
            axes.bar(at + WIDTH * (i - 1.5), height, 0.9 * WIDTH, color=figures.COLOURS[i])
        plain = 2 * 4 * model.values / MB
        line = axes.hlines(plain, at - 0.45, at + 0.45, color="black", linewidth=1.0)
        line.set_label("float32, unencrypted" if at == 0 else None)
    axes.set(title=f"MB up and down, {TABLE_3_BITS} bits a value", yscale="log")
    axes.set_xticks(range(len(found)), [f"{model.name}\n{model.values:,}" for model in found])
    axes.legend(loc="upper left", fontsize=7)
    _finish(axes)


def _errors(axes: Axes, found: Results) -> None:
    rows = next(reversed(found.values()))
    bits = sorted({row.bits for row in rows})
    for at, each in enumerate(bits):
        for i, (encoding, packed) in enumerate(BARS.values()):
            error = _row(rows, encoding, packed, each).error
            if error is not None:
                axes.bar(at + WIDTH * (i - 1.5), error, 0.9 * WIDTH, color=figures.COLOURS[i])
    axes.set(title=f"error of a sum of {COHORT}, measured", yscale="log")
    axes.set_xticks(range(len(bits)), [f"{each} bits a value" for each in bits])
    _finish(axes)


def _row(rows: list[Row], encoding: str, packed: bool, bits: int) -> Row:
    return next(
        row for row in rows if (row.encoding, row.packed, row.bits) == (encoding, packed, bits)
    )


def _finish(axes: Axes) -> None:
    axes.tick_params(axis="x", length=0, labelsize=7)
    axes.grid(False, axis="x")
    axes.set_axisbelow(True)

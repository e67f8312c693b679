"""Figures of `leakage`: originals against reconstructions, and the curve over the share."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe_lab.audit.leakage import ALL, LABELS, NONE, RULES, Audit, name
from flhe_lab.bench import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LETTERS = 25
"""Of the small print, in an inch."""

MARKS = ("o", "s", "D", "^")


def picture(found: Audit, path: Path) -> None:
    """Draw a row of originals, and one for each way, with SSIM, MSE and credits."""
    count = len(found.images)
    rows = [("original", None), *((name(*at), at) for at in found.pictured)]
    with figures.look():
        width = 1.2 + 1.05 * count
        figure = figures.new(width, 1.32 * len(rows))
        grid = figure.subplots(len(rows), count, squeeze=False)
        for line, (label, at) in zip(grid, rows, strict=True):
            for i, axes in enumerate(line):
                if at is None:
                    _show(axes, found.images.pixels[i], found.images.names[i])
                else:
                    point = found.of(*at)[i]
                    title = f"SSIM {point.ssim:.2f}  MSE {point.mse:.3f}"
                    _show(axes, found.guesses[(*at, i)], title)
            line[0].set_ylabel(label.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=7)
        lines = [textwrap.fill(line, int(LETTERS * width)) for line in found.images.credits]
        figure.supxlabel("\n".join(lines), x=0.99, ha="right", fontsize=5)
        figures.save(figure, path)


def _show(axes: Axes, image: NDArray[Any], title: str) -> None:
    axes.imshow(image.transpose(1, 2, 0), interpolation="nearest")
    axes.set_title(title, fontsize=6)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def curve(found: Audit, path: Path) -> None:
    """Draw SSIM and MSE over the share encrypted: means, and from the least to the largest."""
    with figures.look():
        figure = figures.new(7.4, 2.9)
        for axes, what in zip(figure.subplots(1, 2), ("ssim", "mse"), strict=True):
            for i, rule in enumerate(RULES):
                ways = [(NONE, 0.0), *((rule, s) for s in found.setting.shares), (ALL, 1.0)]
                values = [[getattr(p, what) for p in found.of(*at)] for at in ways]
                shares = [100 * share for _, share in ways]
                look: dict[str, Any] = {"color": figures.COLOURS[i]}
                low, high = [min(v) for v in values], [max(v) for v in values]
                axes.fill_between(shares, low, high, alpha=0.13, linewidth=0, **look)
                means = [sum(v) / len(v) for v in values]
                axes.plot(
                    shares, means, marker=MARKS[i], markersize=3.5, label=LABELS[rule], **look
                )
            axes.set(xlabel="encrypted, % of the parameters", title=what.upper(), xlim=(0, 100))
            axes.set_ylim(bottom=0)
            axes.legend(loc="best", fontsize=7)
        figures.save(figure, path)

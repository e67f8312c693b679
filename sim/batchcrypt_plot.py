"""Table and figure of `batchcrypt_models`: a panel a phase, logarithmic; hatched is projected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from flhe.sim import figures
from flhe.sim.batchcrypt_models import BATCHED, COHORT, OURS, VALUES, Cost, Model, Results, ratios
from flhe.sim.bench import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = (VALUES, BATCHED, OURS)
WIDTH = 0.27
"""Of a bar; three beside each other are a model."""


def table(found: Results, key_bits: int) -> Table:
    """Medians, sizes, and ratios of minima, beside the paper's."""
    out = Table(
        title=f"a round of {COHORT} clients, {key_bits}-bit keys, one thread",
        caption="medians, ~ projected from a sample; ratios are of minima. Work is a client's "
        "encryption and decryption and the server's additions; the paper's ratios are of FATE's whole "
        "iteration, network and waiting included, and of its traffic",
    )
    for heading in ("model", "", "encrypt", f"add, {COHORT - 1}", "decrypt", "work", "up, down"):
        out.add_column(heading, justify="left" if heading in ("model", "") else "right")
    for model, costs in found.items():
        for i, cost in enumerate(costs):
            seconds = (cost.encrypt_s, cost.add_s.projected(COHORT - 1), cost.decrypt_s)
            out.add_row(
                f"{model.name}\n{model.values:,}" if i == 0 else "",
                cost.name,
                *(_cell(p, s.median, cost) for p, s in zip(PHASES, seconds, strict=True)),
                ("~" if cost.projected else "") + _seconds(cost.work_s),
                f"{cost.upload_bytes / 1e6:,.2f} MB",
            )
        by = ratios(costs)
        cells = [
            "\n".join(
                ("" if what == "bytes" else "~") + f"{by[f'{what}: {name} / {OURS}']:,.1f}x"
                for name in (VALUES, BATCHED)
            )
            for what in ("encrypt", "decrypt", "work", "bytes")
        ]
        out.add_row("", f"{VALUES} / {OURS}\n{BATCHED} / {OURS}", cells[0], "", *cells[1:])
        paper = f"{model.paper_time:g}x", f"{model.paper_traffic:g}x"
        out.add_row("", "the paper's, of an iteration", "", "", "", *paper, end_section=True)
    return out


def _cell(phase: str, seconds: float, cost: Cost) -> str:
    return ("~" if phase in cost.projected else "") + _seconds(seconds)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds < 100 else f"{seconds:,.0f} s"


def plot(found: Results, key_bits: int, path: Path) -> None:
    """Draw seconds of encryption, additions and decryption, and bytes, model by model."""
    with figures.look():
        figure = figures.new(7.4, 3.2)
        panels = figure.subplots(1, 4)
        factors = {"encrypt": 1, "add": COHORT - 1, "decrypt": 1}
        titles = ("encrypt, s", f"add {COHORT - 1} uploads, s", "decrypt, s")
        for axes, title, (phase, factor) in zip(panels, titles, factors.items(), strict=False):
            bars = {
                (model, cost.name): (
                    factor * getattr(cost, f"{phase}_s").median,
                    phase in cost.projected,
                )
                for model, costs in found.items()
                for cost in costs
            }
            _bars(axes, title, bars, list(found))
        sizes = {
            (model, cost.name): (cost.upload_bytes / 1e6, False)
            for model, costs in found.items()
            for cost in costs
        }
        _bars(panels[3], "upload, MB", sizes, list(found))
        reach = [axes.get_ylim() for axes in panels[:3]]
        for axes in panels[:3]:  # seconds are seconds
            axes.set_ylim(min(low for low, _ in reach), max(high for _, high in reach))
        figure.supxlabel(
            f"medians, {COHORT} clients, {key_bits}-bit keys, one thread; hatched: projected from a "
            "sample",
            fontsize=7.5,
            color="#333333",
        )
        handles = [panels[0].bar([0], [0], 0, color=figures.COLOURS[i]) for i in range(len(NAMES))]
        figure.legend(handles, NAMES, loc="outside upper center", ncols=len(NAMES))
        figures.save(figure, path)


def _bars(
    axes: Axes,
    title: str,
    bars: dict[tuple[Model, str], tuple[float, bool]],
    models: list[Model],
) -> None:
    for i, name in enumerate(NAMES):
        for at, model in enumerate(models):
            height, projected = bars[model, name]
            axes.bar(
                at + WIDTH * (i - 1),
                height,
                WIDTH,
                color=figures.COLOURS[i],
                hatch="////" if projected else "",
                edgecolor="white",
                linewidth=0.4,
            )
    axes.set(title=title, yscale="log")
    axes.set_xticks(range(len(models)), [model.name for model in models])
    axes.tick_params(axis="x", length=0, labelsize=7)
    axes.grid(False, axis="x")
    axes.set_axisbelow(True)

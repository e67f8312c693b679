"""`flhe bench --mask-counts`: double and single masking as clients drop out.

The paper measures seconds (FLASHE, Fig. 12); a second there is mostly AES, and AES is called once for
each mask. So masks are counted here, by asking the scheme itself which streams it would take, for
random sets of survivors, beside what Theorem 2 expects. No machine's speed is in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from flhe.errors import ConfigError
from flhe.schemes.flashe import Flashe
from flhe.schemes.masking import Mode, expected, for_dropout
from flhe.sim import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS = (20, 40, 80)
DROPOUTS = tuple(i / 20 for i in range(19))
"""0 to 0.9. Each is a whole number of 20, 40 or 80 clients."""

SETS = 50
"""Sets of survivors at one dropout rate, as in the paper."""

SEED = 12
SHOWN = (0.0, 0.3, 0.9)
"""Dropout rates in the table."""

MODES: tuple[Mode, Mode] = ("double", "single")
LOOK: dict[Mode, tuple[str, str, str]] = {
    "double": (figures.COLOURS[0], "-", "o"),
    "single": (figures.COLOURS[1], "--", "s"),
}
"""Colour, line and mark of each masking."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks that a surviving client makes for one value under one masking.

    Parameters
    ----------
    expected : float
        By Theorem 2.
    mean, min, max : float
        Over the sets of survivors.
    """

    expected: float
    mean: float
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Point:
    """One dropout rate."""

    dropout: float
    survivors: int
    double: Masks
    single: Masks


@dataclass(frozen=True, slots=True)
class Sweep:
    """All dropout rates among one number of clients, and where the maskings cost the same.

    Parameters
    ----------
    clients : int
        N.
    crossover : float
        By Theorem 2.
    measured_crossover : float or None
        Of the means, on straight lines between them; None where they do not cross.
    points : tuple[Point, ...]
        By ascending dropout rate.
    """

    clients: int
    crossover: float
    measured_crossover: float | None
    points: tuple[Point, ...]


def crossover(members: int) -> float:
    """The dropout rate up to which double masking makes no more masks than single, by bisection.

    0.0 where that is so at no rate above: among two or three clients.
    """
    low, high = 0.0, 1.0  # without survivors single masking has nothing to open: it is cheaper
    while high - low > 1e-12:
        middle = (low + high) / 2
        if for_dropout(members, middle).masking == "double":
            low = middle
        else:
            high = middle
    return low


def sweep(
    clients: int,
    rng: np.random.Generator,
    *,
    dropouts: Sequence[float] = DROPOUTS,
    sets: int = SETS,
) -> Sweep:
    """Count masks among `clients`, for random sets of survivors at each dropout rate.

    Raises
    ------
    ConfigError
        No sets, rates that do not ascend, or one at which nobody survives.
    """
    if sets < 1:
        raise ConfigError(f"sets={sets}: must be at least 1")
    if any(b <= a for a, b in pairwise(dropouts)):
        raise ConfigError("dropout rates must ascend")
    points = tuple(_point(clients, dropout, sets, rng) for dropout in dropouts)
    return Sweep(clients, crossover(clients), _crossing(points), points)


def _point(clients: int, dropout: float, sets: int, rng: np.random.Generator) -> Point:
    survivors = round(clients * (1 - dropout))
    if not 1 <= survivors <= clients:
        raise ConfigError(f"dropout={dropout} of {clients} clients: at least one must survive")
    chosen = [rng.choice(clients, survivors, replace=False).tolist() for _ in range(sets)]
    share = (clients - survivors) / clients  # what it came to in whole clients
    found: dict[str, Masks] = {}
    for mode in MODES:
        counts = [_made(Flashe(clients, masking=mode), senders) for senders in chosen]
        mean = statistics.fmean(counts)
        found[mode] = Masks(expected(mode, clients, share), mean, min(counts), max(counts))
    return Point(share, survivors, found["double"], found["single"])


def _made(scheme: Flashe, survivors: Sequence[int]) -> int:
    """Masks that one survivor makes for a value: those of its own, then those of the sum."""
    own = scheme.mask_terms(survivors[:1])
    both = scheme.mask_terms(survivors)
    return sum(map(len, own)) + sum(map(len, both))


def _crossing(points: Sequence[Point]) -> float | None:
    for before, after in pairwise(points):
        a, b = (p.single.mean - p.double.mean for p in (before, after))
        if a >= 0 > b:
            return before.dropout + (after.dropout - before.dropout) * a / (a - b)
    return None


def mask_counts(
    clients: Sequence[int] = CLIENTS, *, seed: int = SEED, sets: int = SETS
) -> list[Sweep]:
    """One sweep for each number of clients."""
    rng = np.random.default_rng(seed)  # who survives; keys and masks never come from here
    return [sweep(count, rng, sets=sets) for count in clients]


def to_data(sweeps: Sequence[Sweep], *, seed: int = SEED, sets: int = SETS) -> dict[str, Any]:
    """What was counted and how, as JSON values."""
    return {
        "made_by": {"command": "flhe bench --mask-counts", "flhe": version("flhe")},
        "unit": "masks a value and surviving client: to encrypt one, and to open the sum",
        "source": "FLASHE, Theorem 2 and Fig. 12",
        "seed": seed,
        "sets": sets,
        "sweeps": [asdict(s) for s in sweeps],
    }


def plot(sweeps: Sequence[Sweep], path: Path) -> None:
    """Draw one panel for each number of clients, and one with the crossovers of all."""
    count = len(sweeps) + 1
    rows = -(-count // 2)
    with figures.look():
        figure = figures.new(7.0, 2.6 * rows)
        for at, each in enumerate(sweeps):
            axes = figure.add_subplot(rows, 2, at + 1)
            _panel(axes, each)
            if at == 0:  # all panels have the same lines
                figure.legend(
                    *axes.get_legend_handles_labels(), loc="outside upper center", ncols=3
                )
        _crossovers(figure.add_subplot(rows, 2, count), sweeps)
        figures.save(figure, path)


def _panel(axes: Axes, found: Sweep) -> None:
    rates = np.linspace(0, found.points[-1].dropout, 181).tolist()
    shares = [p.dropout for p in found.points]
    for mode, (colour, line, mark) in LOOK.items():
        masks: list[Masks] = [getattr(p, mode) for p in found.points]
        curve = [expected(mode, found.clients, rate) for rate in rates]
        axes.plot(rates, curve, line, color=colour, label=f"{mode} masking, Theorem 2")
        if mode == "double":  # of single masking, all sets of one size take the same
            low, high = [m.min for m in masks], [m.max for m in masks]
            label = f"{mode} masking, least to most"
            axes.fill_between(shares, low, high, color=colour, alpha=0.15, linewidth=0, label=label)
        label = f"{mode} masking, counted"
        axes.plot(shares, [m.mean for m in masks], mark, color=colour, markersize=3.2, label=label)
    axes.axvline(found.crossover, color="#555555", linewidth=0.9, linestyle=":")
    axes.annotate(
        f"crossover {found.crossover:.3f}",
        (found.crossover, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(4, 2),
        textcoords="offset points",
        color="#333333",
    )
    axes.set(title=f"{found.clients} clients", xlim=(-0.02, rates[-1] + 0.02))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="dropout rate", ylabel="masks per value\nand surviving client")


def _crossovers(axes: Axes, sweeps: Sequence[Sweep]) -> None:
    sizes = np.unique(np.geomspace(3, 1000, 200).astype(int)).tolist()
    axes.axhspan(0.3, 0.5, color="#EEEEEE", label="0.3 to 0.5, as the paper has it")
    axes.plot(sizes, [crossover(n) for n in sizes], color=figures.COLOURS[2], label="Theorem 2")
    counted = [(s.clients, s.measured_crossover) for s in sweeps if s.measured_crossover]
    axes.plot(*zip(*counted, strict=True), "o", color="#333333", markersize=4, label="counted")
    axes.set(title="where single masking becomes cheaper", xscale="log", ylim=(0, 0.6))
    axes.set(xlabel="clients", ylabel="dropout rate at the crossover")
    axes.set_xticks([3, 10, 30, 100, 300, 1000], ["3", "10", "30", "100", "300", "1000"])
    axes.minorticks_off()
    axes.legend(loc="lower right")


def table(sweeps: Sequence[Sweep]) -> Table:
    """One line for each number of clients: the crossovers, and masks at a few dropout rates."""
    out = Table(
        title="masks per value and surviving client: double / single, by dropout rate",
        caption="means over random survivors; crossover by Theorem 2, and as counted",
    )
    for heading in ("clients", "crossover", "counted", *(f"{d:g}" for d in SHOWN)):
        out.add_column(heading, justify="right", no_wrap=True)
    for each in sweeps:
        at = {round(p.dropout, 6): p for p in each.points}
        out.add_row(
            str(each.clients),
            f"{each.crossover:.3f}",
            "" if each.measured_crossover is None else f"{each.measured_crossover:.3f}",
            *(
                f"{p.double.mean:.1f} / {p.single.mean:.1f}" if p else ""
                for p in map(at.get, SHOWN)
            ),
        )
    return out


def report(path: Path) -> Table:
    """Count, write the figure to `path` and its data beside it; the table to print."""
    figures.check(path)
    sweeps = mask_counts()
    figures.save_data(path, "flhe mask counts", 1, to_data(sweeps))
    plot(sweeps, path)
    return table(sweeps)

"""What `flhe crowd` says of its runs: quantities, the laws they should follow, a table, a figure.

The powers of N are what theory says of a quantity, not what fits best: y = sum of c_p N^p, no c_p below
0, by least squares of relative errors. How far the points lie from it says whether theory holds.
A whole follows the sum of its parts' laws: fitted apart, it might grow more slowly than a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from flhe.keys.roster.roster import MAX_MEMBERS
from flhe_app import style
from flhe_lab.bench.table import columns
from flhe_lab.crowd.found import Found
from flhe_lab.crowd.phases import PER_ROUND
from flhe_lab.tables.axes import logarithmic, nth_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGE = 65
"""Clients from which on runs are large: what does not grow with them no longer shows."""

GROWS = {0: "constant", 1: "linear", 2: "quadratic"}


@dataclass(frozen=True, slots=True)
class Growth:
    """A law and how well it holds."""

    powers: tuple[int, ...]  # p of each term, ascending
    factors: tuple[float, ...]  # c_p of each, not below 0
    residual: float  # Largest relative distance of a point from it
    points: int  # Through how many it was laid: all, where they are no more than terms

    @property
    def name(self) -> str:
        """In a word, by its largest term."""
        return GROWS[
            max((p for p, c in zip(self.powers, self.factors, strict=True) if c), default=0)
        ]

    def at(self, clients: float) -> float:
        """What it says of so many; beyond those that were run, a projection."""
        return sum(c * clients**p for p, c in zip(self.powers, self.factors, strict=True))


def growth(clients: Sequence[int], found: Sequence[float], powers: Sequence[int]) -> Growth:
    """Lay the law of these powers through the points."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    n, y = np.asarray(clients, np.float64), np.asarray(found, np.float64)
    terms = sorted(set(powers))
    rows = np.stack([n**p / y for p in terms], axis=1)
    scale = rows.max(axis=0)
    factors = nnls(rows / scale, np.ones_like(y))[0] / scale
    return _against(clients, found, dict(zip(terms, factors.tolist(), strict=True)))


def together(parts: Sequence[Growth], clients: Sequence[int], found: Sequence[float]) -> Growth:
    """Add up the laws of the parts of a whole; no part then exceeds the whole, at any N.

    `clients` and `found` are the whole as it was measured: the residual is its distance from the sum.
    """
    factors: dict[int, float] = {}
    for part in parts:
        for p, c in zip(part.powers, part.factors, strict=True):
            factors[p] = factors.get(p, 0.0) + c
    return _against(clients, found, factors)


def _against(
    clients: Sequence[int], found: Sequence[float], factors: Mapping[int, float]
) -> Growth:
    powers = tuple(sorted(factors))
    law = Growth(powers, tuple(factors[p] for p in powers), 0.0, len(found))
    off = (abs(law.at(n) / y - 1) for n, y in zip(clients, found, strict=True))
    return replace(law, residual=max(off))


FURTHER = 10
"""How many times as many clients are projected."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that a run took."""

    name: str  # In tables
    unit: str  # "s", "kB" or "MB"
    of: Callable[[Found], float]  # Found -> amount
    powers: tuple[int, ...] = ()  # Powers of N that theory says
    parts: tuple[Quantity, ...] = ()
    """What a whole consists of: it follows the sum of their laws, and has no powers of its own."""

    def law(self, runs: Sequence[Found]) -> Growth | None:
        """How it grows over large runs; None of fewer than two."""
        large = [run for run in runs if run.asked.clients >= LARGE]
        points = {run.asked.clients: self.of(run) for run in large if self.of(run) > 0}
        if len(points) < 2:
            return None
        if self.parts:
            laws = [law for part in self.parts if (law := part.law(runs)) is not None]
            if len(laws) < len(self.parts):
                return None
            return together(laws, [*points], [*points.values()])
        return growth([*points], [*points.values()], self.powers)


def _client_s(run: Found, *, of_round: bool) -> float:
    return sum(s for stage, s in run.client_cpu_s.items() if (stage in PER_ROUND) == of_round)


def _noted(run: Found, *keys: str, of_round: bool) -> float:
    """Of the epoch, or of the last round: in the first one everybody's confirmations travel too."""
    last = run.asked.rounds if of_round else 0
    return sum(float(p[key]) for p in run.phases if p["round"] == last for key in keys)


def _moved(run: Found, *, of_round: bool) -> float:
    total = _noted(run, "up_bytes_total", "down_bytes_total", of_round=of_round)
    return total / run.asked.clients / 1e3


MEMORY = (
    Quantity("server's process", "MB", lambda r: r.server_bytes / 1e6, (0, 1, 2)),
    Quantity("one actor", "MB", lambda r: r.actor_bytes / 1e6, (0, 1)),
    Quantity(
        "other processes",
        "MB",
        # A process's own peak counts shared pages in full, and peaks need not coincide.
        lambda r: max(r.tree_bytes - r.server_bytes - r.actor_bytes, 0) / 1e6,
        (0, 1),
    ),
)
"""Parts of the memory of all processes; the last one is Ray's own processes and further actors."""

QUANTITIES = (
    Quantity("client, epoch", "s", lambda r: _client_s(r, of_round=False), (0, 1)),
    Quantity("client, round", "s", lambda r: _client_s(r, of_round=True), (0, 1)),
    Quantity("server, epoch", "s", lambda r: _noted(r, "server_s", of_round=False), (1, 2)),
    Quantity("server, round", "s", lambda r: _noted(r, "server_s", of_round=True), (0, 1, 2)),
    Quantity(
        "Flower's store and looking, round",
        "s",
        lambda r: _noted(r, "grid_s", of_round=True),
        (0, 1, 2),
    ),
    Quantity("round, all clients", "s", lambda r: median(r.rounds_s), (1, 2)),
    Quantity("bytes of a client, epoch", "kB", lambda r: _moved(r, of_round=False), (0, 1)),
    Quantity("bytes of a client, round", "kB", lambda r: _moved(r, of_round=True), (0, 1)),
    *MEMORY,
    Quantity("all processes", "MB", lambda r: r.tree_bytes / 1e6, parts=MEMORY),
)
"""Seconds of client and server are of their processor; those of a round are the clock's."""


def table(runs: Sequence[Found]) -> Table:
    """What each run, by ascending clients, took, the law, and what ten times as many would take."""
    most = runs[-1].asked.clients
    further = FURTHER * most
    beyond = f"; a group has {MAX_MEMBERS:,} members at most today" if further > MAX_MEMBERS else ""
    counts = (f"{run.asked.clients:,}" for run in runs)
    out = Table(
        *columns("", *counts, "law", "off", f"~{further:,}", no_wrap=False),
        title=f"SASH, {runs[0].asked.values:,} values, on Ray",
        caption=f"law: what theory says from {LARGE} on; off: the farthest point; "
        f"~ projected{beyond}",
    )
    for quantity in QUANTITIES:
        law = quantity.law(runs)
        said = ("", "", "")
        if law is not None:
            said = (law.name, f"{law.residual:.0%}", f"~{law.at(further):,.3g}")
        cells = [f"{quantity.of(run):,.3g}" for run in runs]
        out.add_row(f"{quantity.name}, {quantity.unit}", *cells, *said)
    return out


# --- the figure: seconds, bytes and memory over clients, and how they should grow ---

PANELS = (
    ("seconds of the processor", ("client, round", "server, round")),
    ("a client's traffic, kB", ("bytes of a client, epoch", "bytes of a client, round")),
    ("memory, MB", ("server's process", "all processes")),
)
"""Title, and the quantities that it shows."""


def plot(runs: Sequence[Found], path: Path) -> None:
    """Draw runs, by ascending clients, and the laws through them, dashed where nothing was run."""
    quantities = {quantity.name: quantity for quantity in QUANTITIES}
    last = quantities["client, round"]
    says = (
        f"With {runs[-1].asked.clients:,} clients, a client of SASH computes for "
        f"{last.of(runs[-1]):.2g} s a round, the server for "
        f"{quantities['server, round'].of(runs[-1]):.2g} s"
    )
    footer = (
        "Dots: measured. Lines: what theory says; dashed: projected to ten times as many clients."
    )
    with style.drawn(path, says, 3.3, grid=(1, len(PANELS)), footer=footer) as (_, drawn):
        for axes, (title, names) in zip(drawn, PANELS, strict=True):
            ends = [_line(axes, runs, quantities[each], i) for i, each in enumerate(names)]
            axes.set(title=title, xlabel="clients")
            logarithmic(axes.xaxis)
            logarithmic(axes.yaxis)
            for name, ink, x, y in ends:
                beside = {
                    "textcoords": "offset points",
                    "ha": "right",
                    "fontsize": 7.5,
                    "color": ink,
                }
                axes.annotate(name, (x, y), (-4, 6), **beside)  # type: ignore[arg-type]


def _line(
    axes: Axes, runs: Sequence[Found], quantity: Quantity, spare: int
) -> tuple[str, str, float, float]:
    """Draw one quantity; returns its name, its colour, and where its line ends."""
    look = nth_look(spare)
    ink = style.colour(look.colour)
    at = [run.asked.clients for run in runs]
    axes.plot(at, [quantity.of(run) for run in runs], look.marker, markersize=4.5, color=ink)
    law = quantity.law(runs)
    if law is None:
        return quantity.name, ink, at[-1], quantity.of(runs[-1])
    for low, high, line in ((at[0], at[-1], "-"), (at[-1], FURTHER * at[-1], "--")):
        xs = np.geomspace(low, high, 30)
        axes.plot(xs, [law.at(x) for x in xs], line, linewidth=1.0, color=ink)
    return quantity.name, ink, FURTHER * at[-1], law.at(FURTHER * at[-1])

"""What `flhe crowd` says of its runs: quantities, the laws that they should follow, a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from flhe.keys.agreement.circle import PACKED_FROM
from flhe.keys.roster.roster import MAX_MEMBERS
from flhe_lab.crowd.found import Found
from flhe_lab.crowd.growth import Growth, growth, together
from flhe_lab.crowd.phases import PER_ROUND

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
        """How it grows over runs, where shares are packed; None of fewer than two."""
        large = [run for run in runs if run.asked.clients >= PACKED_FROM]
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


def _server_s(run: Found, key: str, *, of_round: bool) -> float:
    """Of the epoch, or of the last round: in the first one everybody's confirmations travel too."""
    last = run.asked.rounds if of_round else 0
    return sum(float(p[key]) for p in run.phases if p["round"] == last)


def _moved(run: Found, *, of_round: bool) -> float:
    last = run.asked.rounds if of_round else 0
    phases = [p for p in run.phases if p["round"] == last]
    total = sum(float(p["up_bytes_total"]) + float(p["down_bytes_total"]) for p in phases)
    return total / run.asked.clients / 1e3


MEMORY = (
    Quantity("server's process", "MB", lambda r: r.server_bytes / 1e6, (0, 1, 2)),
    Quantity("one actor", "MB", lambda r: r.actor_bytes / 1e6, (0, 1)),
    Quantity("other processes", "MB", lambda r: r.other_bytes / 1e6, (0, 1)),
)
"""Parts of the memory of all processes; the last one is Ray's own processes and further actors."""

QUANTITIES = (
    Quantity("client, epoch", "s", lambda r: _client_s(r, of_round=False), (0, 1)),
    Quantity("client, round", "s", lambda r: _client_s(r, of_round=True), (0, 1)),
    Quantity("server, epoch", "s", lambda r: _server_s(r, "server_s", of_round=False), (1, 2)),
    Quantity("server, round", "s", lambda r: _server_s(r, "server_s", of_round=True), (0, 1, 2)),
    Quantity(
        "Flower's store and looking, round",
        "s",
        lambda r: _server_s(r, "grid_s", of_round=True),
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
    out = Table(
        title=f"SASH, {runs[0].asked.values:,} values, on Ray",
        caption=f"law: what theory says from {PACKED_FROM} on; off: the farthest point; "
        f"~ projected{beyond}",
    )
    out.add_column("")
    for run in runs:
        out.add_column(f"{run.asked.clients:,}", justify="right")
    for heading in ("law", "off", f"~{further:,}"):
        out.add_column(heading, justify="right")
    for quantity in QUANTITIES:
        law = quantity.law(runs)
        said = ("", "", "")
        if law is not None:
            said = (law.name, f"{law.residual:.0%}", f"~{law.at(further):,.3g}")
        cells = [f"{quantity.of(run):,.3g}" for run in runs]
        out.add_row(f"{quantity.name}, {quantity.unit}", *cells, *said)
    return out

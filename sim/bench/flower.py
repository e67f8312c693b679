"""`flhe bench flower`: SASH beside Flower's own SecAgg+: one client, and the server's unmasking.

Flower's is measured as installed (`flower_secagg`), twice: every client sharing with every other one,
which is what it takes to withstand what SASH withstands (a third dropping out, a third colluding), and
with the paper's 100 neighbours or, in a group of 100, with 20. In a group of 500 its server is left
out: a round of it would take hours. All take turns on one processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from flhe_lab.bench.flower_parts import Round
from flhe_lab.bench.flower_secagg import FlowerSecAgg, Projection
from flhe_lab.bench.host import machine, pinned
from flhe_lab.bench.sash_members import SashMembers
from flhe_lab.bench.secure_sums import Setting, contender
from flhe_lab.bench.turns import Progress, Times, measure

VALUES = 1_000_000
REPEATS = 7
OURS = "SASH"


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of one contender in one setting; `projected` is the server's."""

    name: str
    clients: int
    values: int
    dropout: float
    client_s: Times
    server_s: Times | None
    projected: bool


def flower(setting: Setting, shares: int, *, whole: bool) -> FlowerSecAgg | Projection:
    """Flower's SecAgg+ among `shares` clients each, run whole or projected from its parts."""
    # As many shares as are left when a third is gone, and more than half of them.
    threshold = max(shares // 2 + 1, shares - shares // 3 - 1)
    if shares < setting.clients:
        threshold = shares // 3
    asked = Round(setting.clients, setting.values, shares, threshold, setting.dropouts)
    return FlowerSecAgg(asked) if whole else Projection(asked)


def settings(values: int, *, quick: bool) -> list[tuple[Setting, bool]]:
    """What is measured, each with whether Flower's server takes part."""
    many, group = (20, 9) if quick else (500, 100)
    return [
        (Setting(group, values, 0.0), True),
        (Setting(group, values, 0.3), True),
        (Setting(many, values, 0.1), False),
    ]


def compare(
    asked: Sequence[tuple[Setting, bool]],
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> list[Row]:
    """Measure everybody in `asked`.

    Raises
    ------
    FlheError
        A sum that is not the sum.
    """
    found: list[Row] = []
    for setting, serves in asked:
        few = min(21 if setting.clients <= 100 else 101, setting.clients)
        taking = [contender(OURS, SashMembers(setting))]
        for shares in sorted({few, setting.clients}):
            who = "all others" if shares == setting.clients else f"{shares - 1} neighbours"
            sides = flower(setting, shares, whole=serves and shares < setting.clients)
            # Who takes minutes, once.
            made = contender(f"Flower SecAgg+, {who}", sides, max_repeats=1)
            taking.append(made if serves else replace(made, phases={"client": sides.client}))
        with pinned(1):
            measured = measure(taking, repeats, progress)
        for name, each in measured.items():
            found.append(
                Row(
                    name,
                    setting.clients,
                    setting.values,
                    setting.dropout,
                    each.times["client"],
                    each.times.get("server"),
                    bool(each.contender.projected),
                )
            )
    return found


def table(found: Sequence[Row]) -> Table:
    """Minima, and how many times SASH's they are."""
    out = Table(
        title=f"{found[0].values:,} values, one thread",
        caption="minima in seconds, and how many times SASH's; ~ is added up from parts",
    )
    for heading in ("clients", "dropout", "", "a client", "", "server, unmasking", ""):
        out.add_column(heading, justify="left" if heading == "" else "right")
    ours = {(row.clients, row.dropout): row for row in found if row.name == OURS}
    for row in found:
        base = ours[row.clients, row.dropout]
        cells = [f"{row.client_s.min:.4f}", _times(row.client_s, base.client_s, row is base)]
        if row.server_s is None or base.server_s is None:
            cells += ["", ""]
        else:
            mark = "~" if row.projected else ""
            cells.append(f"{mark}{row.server_s.min:.4f}")
            cells.append(_times(row.server_s, base.server_s, row is base))
        out.add_row(f"{row.clients}", f"{row.dropout:.0%}", row.name, *cells)
    return out


def _times(row: Times, base: Times, own: bool) -> str:
    return "" if own else f"{row.min / base.min:,.0f}x"


def to_data(found: Sequence[Row]) -> dict[str, Any]:
    """Machine and rows, as JSON values."""
    return {"machine": machine(), "rows": [asdict(row) for row in found]}

"""`flhe bench flower`: SASH beside Flower's own SecAgg+: one client, and the server's unmasking.

Flower's is measured as installed (`flower_secagg`), twice: every client sharing with every other one,
which is what it takes to withstand what SASH withstands (a third dropping out, a third colluding), and
with the paper's 100 neighbours or, in a group of 100, with 20. In a group of 500 its server is left
out: a round of it would take hours. All take turns on one processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from flhe_lab.bench.host import machine, pinned
from flhe_lab.bench.sash_members import Setting
from flhe_lab.bench.secure_sums import SASH, Maker, Sides, flowers, timed
from flhe_lab.bench.turns import Measured, Progress, Times

VALUES = 1_000_000
REPEATS = 7
Found = list[tuple[Setting, dict[str, Measured]]]
"""What each contender took, setting by setting."""


def settings(values: int, *, quick: bool) -> list[tuple[Setting, bool]]:
    """What is measured, each with whether Flower's server takes part."""
    many, group = (20, 9) if quick else (500, 100)
    return [
        (Setting(group, values, 0.0), True),
        (Setting(group, values, 0.3), True),
        (Setting(many, values, 0.1), False),
    ]


def flower(shares: int, *, serves: bool) -> Maker:
    """Flower's SecAgg+ among `shares` clients each, run whole where they are not all and it serves."""

    def make(setting: Setting) -> Sides:
        # As many shares as are left when a third is gone, and more than half of them.
        threshold = max(shares // 2 + 1, shares - shares // 3 - 1)
        few = shares < setting.clients
        return flowers(setting, shares, shares // 3 if few else threshold, whole=serves and few)

    who = f"{shares - 1} neighbours"
    return Maker(f"Flower SecAgg+, {who}", make, max_repeats=1, serves=serves)


def compare(
    asked: Sequence[tuple[Setting, bool]],
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> Found:
    """Measure everybody in `asked`.

    Raises
    ------
    FlheError
        A sum that is not the sum.
    """
    found: Found = []
    for setting, serves in asked:
        few = min(21 if setting.clients <= 100 else 101, setting.clients)
        makers = [flower(shares, serves=serves) for shares in sorted({few, setting.clients})]
        makers[-1] = replace(makers[-1], name="Flower SecAgg+, all others")
        with pinned(1):
            found.append((setting, timed(setting, [SASH, *makers], repeats, progress)))
    return found


def table(found: Found) -> Table:
    """Minima, and how many times SASH's they are."""
    out = Table(
        title=f"{found[0][0].values:,} values, one thread",
        caption="minima in seconds, and how many times SASH's; ~ is added up from parts",
    )
    for heading in ("clients", "dropout", "", "a client", "", "server, unmasking", ""):
        out.add_column(heading, justify="left" if heading == "" else "right")
    for setting, rows in found:
        for name, row in rows.items():
            cells = [f"{setting.clients}", f"{setting.dropout:.0%}", name]
            for side in ("client", "server"):
                mine, base = (each.times.get(side) for each in (row, rows[SASH.name]))
                mark = "~" if side in row.contender.projected else ""
                cells.append("" if mine is None else f"{mark}{mine.min:.4f}")
                cells.append("" if name == SASH.name else _times(mine, base))
            out.add_row(*cells)
    return out


def _times(row: Times | None, base: Times | None) -> str:
    return "" if row is None or base is None else f"{row.min / base.min:,.0f}x"


def to_data(found: Found) -> dict[str, Any]:
    """Machine and rows, as JSON values."""
    rows = [
        {
            "name": name,
            **asdict(setting),
            "client_s": asdict(row.times["client"]),
            "server_s": row.times.get("server") and asdict(row.times["server"]),
            "projected": bool(row.contender.projected),
        }
        for setting, each in found
        for name, row in each.items()
    ]
    return {"machine": machine(), "rows": rows}

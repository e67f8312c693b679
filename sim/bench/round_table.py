"""The tables that `flhe bench --round` prints: rounds beside plain FedAvg's, and their phases."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flhe.strategies.overhead import PHASES
from flhe_lab.bench.laps import Row

HEADINGS = ("round,\nmin", "round,\nmedian")
APART = ("processor,\nmedian", "clients'\napps", "besides\nthem", "ratio if apps\nwere equal")


def table(rows: Sequence[Row], title: str, caption: str) -> Table:
    """Seconds of rounds; below them the ratio to the first row's."""
    base, apart = rows[0], rows[0].apps is not None
    out = _table(title, caption)
    for heading in ("", *HEADINGS, *(APART if apart else ())):
        out.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        ratio = {name: "" if row is base else _ratio(r) for name, r in row.over(base).items()}
        cells = [
            _seconds(row.seconds.min) + ratio["min"],
            _seconds(row.seconds.median) + ratio["median"],
        ]
        if row.apps and row.outside and row.cpu:
            cells += [
                _seconds(row.cpu.median) + ratio["cpu"],
                _seconds(row.apps.median),
                _seconds(row.outside.median),
                ratio["apart"].lstrip(),
            ]
        out.add_row(row.name, *cells)
    return out


def phases(rows: Sequence[Row]) -> Table:
    """Median seconds of each phase that some contender has, a column for each contender."""
    out = _table("the same by phase, medians", "")
    for heading in ("", *(row.name for row in rows)):
        out.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    found = [row.phases for row in rows]
    for name in PHASES:
        if any(each.get(name) for each in found):
            out.add_row(name, *(_seconds(each[name]) if name in each else "" for each in found))
    return out


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"\n{ratio:.3f}x"


def _table(title: str, caption: str) -> Table:
    return Table(
        title=title, caption=caption or None, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )

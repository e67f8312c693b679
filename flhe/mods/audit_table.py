"""The table that `flhe log` prints: the audit log of one node, oldest line first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flhe.mods.audit import Entry

_RIGHT = ("round", "size", "seconds")


def table(entries: Sequence[Entry | None]) -> Table:
    """One row an entry, under a row for each run; None, a line that is none, is said to be."""
    out = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="times are UTC; result is the same at all sites unless the server told them different "
        "ones; size is what left, seconds include the app's own",
    )
    out.add_column("run / time", no_wrap=True)
    for heading in ("stage", "epoch", "round", "result", "answer", "size", "seconds"):
        out.add_column(heading, justify="right" if heading in _RIGHT else "left", overflow="fold")
    run = None
    for entry in entries:
        if entry is None:
            out.add_row("not a line of flhe")
            continue
        if entry.run != run:  # beside each row it would take a quarter of a terminal
            run = entry.run
            out.add_section()
            out.add_row(f"{run}", style="bold")
        out.add_row(*_cells(entry))
    return out


def _cells(entry: Entry) -> tuple[str, ...]:
    return (
        entry.when.replace("T", " ").rstrip("Z"),
        entry.stage,
        "" if entry.epoch is None else entry.epoch.hex(),
        _round(entry),
        "" if entry.result is None else entry.result.hex(),
        entry.answer + (f": {entry.reason.removeprefix('flhe/')}" if entry.reason else ""),
        _size(entry.bytes_out),
        f"{entry.seconds:.3f}",
    )


def _round(entry: Entry) -> str:
    """The round, and the attempt where it is not the first."""
    if entry.round is None:
        return ""
    return f"{entry.round}" + (f" ({entry.attempt})" if entry.attempt else "")


def _size(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else f"{count / 1e6:,.2f} MB"

"""Tables of `flhe log`: a node's audit log, oldest line first, and its contracts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flhe.node.audit import Entry
from flhe.node.node import StoredSession

_WIDE = ("stage", "epoch", "round", "result", "answer", "size", "seconds")
_STACKED = ("stage\nround", "epoch\nresult", "answer\nreason", "size\nseconds")
_RIGHT = ("round", "size", "seconds", "size\nseconds")
_UNLIMITED = 1000
"""Columns of a terminal that fit any line."""


def audit_table(entries: Sequence[Entry | None], console: Console) -> Table:
    """Return one row for each entry, under a row for each run; narrow terminals stack the cells."""
    wide = _table(entries, stacked=False)
    unlimited = console.options.update(max_width=_UNLIMITED)
    fits = console.measure(wide, options=unlimited).maximum <= console.width
    return wide if fits else _table(entries, stacked=True)


def _table(entries: Sequence[Entry | None], *, stacked: bool) -> Table:
    out = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="times are UTC; result is equal at all sites unless the server sent them different "
        "ones; size counts bytes sent, seconds include the app's own",
    )
    out.add_column("run / time", no_wrap=True)
    for heading in _STACKED if stacked else _WIDE:
        out.add_column(heading, justify="right" if heading in _RIGHT else "left", no_wrap=True)
    run = contract = None
    for entry in entries:
        if entry is None:
            out.add_row("not a line of flhe")
            continue
        if entry.run != run:  # beside each row it would take a quarter of a terminal
            run = entry.run
            out.add_section()
            out.add_row(f"{run}", style="bold")
        if entry.contract not in (None, contract):
            contract = entry.contract
            out.add_row(f"contract {contract.hex()}", style="bold")
        out.add_row(*(_stacked(entry) if stacked else _cells(entry)))
    return out


def _stacked(entry: Entry) -> tuple[str, ...]:
    time, stage, epoch, round_, result, answer, size, seconds = _cells(entry)
    pairs = ((stage, round_), (epoch, result), (answer.replace(": ", ":\n", 1),), (size, seconds))
    return (time, *("\n".join(pair) for pair in pairs))


def _cells(entry: Entry) -> tuple[str, ...]:
    attempt = f" ({entry.attempt})" if entry.attempt else ""
    reason = f": {entry.reason.removeprefix('flhe/')}" if entry.reason else ""
    asked = f"\n{escape(entry.query)}" if entry.query else ""  # the server wrote it
    return (
        entry.when.replace("T", " ").rstrip("Z"),
        entry.stage,
        "" if entry.epoch is None else entry.epoch.hex(),
        "" if entry.round is None else f"{entry.round}{attempt}",
        "" if entry.result is None else entry.result.hex(),
        f"{entry.answer}{reason}{asked}",
        _size(entry.bytes_out),
        f"{entry.seconds:.3f}",
    )


def _size(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else f"{count / 1e6:,.2f} MB"


def contracts(home: Path) -> Iterator[Text]:
    """Yield the contract of each federation as its members signed it, from this node's copy."""
    for path in sorted(home.glob("runs/*/session")):
        contract = StoredSession.from_bytes(path.read_bytes()).contract
        yield Text(f"{path.parent.name}: contract {contract.hash().hex()}", style="bold")
        for line in contract.lines():
            yield Text(f"  {line}")

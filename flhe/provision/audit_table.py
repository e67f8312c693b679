"""Tables of `flhe log`: a node's audit log, oldest line first, and its contracts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from flhe.errors import FlheError
from flhe.node.audit import Entry
from flhe.node.node import StoredSession

_HEADINGS = ("run / time", "stage", "epoch", "round", "result", "answer", "size", "seconds")
_RIGHT = ("round", "size", "seconds")


def audit_table(entries: Sequence[Entry | None]) -> Table:
    """Return one row for each entry, under a row for each run."""
    out = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="Times are UTC. Results are equal at all sites unless the server sent them different "
        "ones. Sizes count bytes sent; seconds include the app's own.",
    )
    for heading in _HEADINGS:
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
        out.add_row(*_cells(entry))
    return out


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
        f"{size:,} B" if (size := entry.bytes_out) < 10_000 else f"{size / 1e6:,.2f} MB",
        f"{entry.seconds:.3f}",
    )


def contracts(home: Path) -> list[list[str]]:
    """Return the contract of each federation as its members signed it, from this node's copy."""
    found = []
    for path in sorted(home.glob("runs/*/session")):
        try:
            contract = StoredSession.from_bytes(path.read_bytes()).contract
        except FlheError as error:  # of another version: the log is needed all the more
            found.append([f"{path.parent.name}: {error}"])
            continue
        title = f"{path.parent.name}: contract {contract.hash().hex()}"
        found.append([title, *contract.lines()])
    return found

"""The table that `flhe bench` prints: times, sizes, and ratios to the limits of the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.progress import Progress as Bar
from rich.table import Table

from flhe.answer import notes
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.times import Rows
from flhe_lab.bench.turns import Progress, Times

LIMIT_OF = {"encrypt": "openssl-aes-ctr", "add": "numpy-add-f32", "decrypt": "openssl-aes-ctr"}
HEADINGS = (
    "encode+\nencrypt",
    "add, a\nclient",
    "decrypt+\ndecode",
    "upload,\na value",
    "max\nerror",
)


def table(rows: Rows, setting: Setting) -> Table:
    """Median times, each with its ratio to the limit of that phase (minimum by minimum)."""
    out = Table(
        title=f"{setting.values:,} values, {setting.cohort} clients, {setting.dropouts} dropped out, "
        f"{setting.threads} thread{'s' if setting.threads > 1 else ''}",
        caption="medians; below them, minimum by minimum, the ratio to AES-CTR over the keystream "
        "or to NumPy's in-cache add",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    longest = max(len(word) for name in rows for word in name.split())
    out.add_column("", no_wrap=True)
    for heading in HEADINGS:
        out.add_column(heading, justify="right", no_wrap=True)
    kind = ""
    for name, row in rows.items():
        if row.contender.kind != kind:
            kind = row.contender.kind
            out.add_section()
        cells = []
        for phase, limit in LIMIT_OF.items():
            base = None if name == limit else rows[limit].times.get(phase)
            cells.append(_cell(row.times.get(phase), base))
        size = row.contender.upload_bytes
        shown = "" if size is None else f"{size / 1e6:.2f} MB\n{size / setting.values:.2f} B"
        out.add_row(
            fill(name, longest), *cells, shown, "" if row.error is None else f"{row.error:.1e}"
        )
    return out


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a bar over the turns, refreshed between timings only, so that it costs them nothing."""
    console = notes()
    off = console.is_dumb_terminal or not console.is_terminal
    with Bar(console=console, transient=True, auto_refresh=False, disable=off) as bar:
        task = bar.add_task("warming up", total=None)

        def advance(turn: int, turns: int, name: str) -> None:
            bar.update(task, total=turns, completed=turn, description=name)
            bar.refresh()

        yield advance


def _cell(times: Times | None, limit: Times | None) -> str:
    if times is None:
        return ""
    ratio = "" if limit is None else f"\n{_short(times.min / limit.min)}x"
    return f"{_seconds(times.median)}{ratio}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3f} ms"
    return f"{seconds:.3f} s" if seconds < 100 else f"{seconds:,.0f} s"

"""The tables that `flhe bench` prints.

Of an update: times, sizes, and ratios to the limits of the same run. Of rounds: seconds beside plain
FedAvg's, and by phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from textwrap import fill
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.progress import Progress as Bar
from rich.table import Column, Table

from flhe.answer import notes
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.times import Rows
from flhe_lab.bench.turns import Measured, Progress, Times

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
        *columns("", *HEADINGS),
        title=f"{setting.values:,} values, {setting.cohort} clients, {setting.dropouts} dropped out, "
        f"{setting.threads} thread{'s' if setting.threads > 1 else ''}",
        caption="medians; below them, minimum by minimum, the ratio to AES-CTR over the keystream "
        "or to NumPy's in-cache add",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    longest = max(len(word) for name in rows for word in name.split())
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
    return f"{seconds(times.median, 3, 3)}{ratio}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def seconds(taken: float, milli: int = 1, whole: int = 2) -> str:
    """Seconds as a table has them, with so many digits of milliseconds, or of seconds."""
    if taken < 1:
        return f"{1e3 * taken:.{milli}f} ms"
    return f"{taken:.{whole}f} s" if taken < 100 else f"{taken:,.0f} s"


def columns(*headings: str, left: Collection[str] = ("",), no_wrap: bool = True) -> list[Column]:
    """Columns of numbers, flush right; those of `left` are of words."""
    sides: list[tuple[str, Literal["left", "right"]]]
    sides = [(each, "left" if each in left else "right") for each in headings]
    return [Column(each, justify=side, no_wrap=no_wrap) for each, side in sides]


# --- rounds beside plain FedAvg's, and their phases ---

HEADINGS_OF_ROUNDS = ("round,\nmin", "round,\nmedian")
APART = ("processor,\nmedian", "clients'\napps", "besides\nthem", "ratio if apps\nwere equal")


def round_table(rows: Mapping[str, Measured], title: str, caption: str) -> Table:
    """Seconds of rounds; below them the ratio to the first row's."""
    from flhe_lab.bench.laps import APPS, BESIDES, PROCESSOR, ROUND, ratios

    base = next(iter(rows.values()))
    known = [each for each in (PROCESSOR, APPS, BESIDES) if each in base.times]
    out = _table(title, caption, *HEADINGS_OF_ROUNDS, *(APART if known else ()))
    for name, row in rows.items():
        ratio = {what: f"\n{r:.3f}x" for what, r in ratios(row, base).items() if row is not base}
        cells = {"min": row.times[ROUND].min, "median": row.times[ROUND].median}
        cells |= {each: row.times[each].median for each in known}
        shown = [seconds(taken) + ratio.get(what, "") for what, taken in cells.items()]
        if known:
            shown.append(ratio.get("apart", "").lstrip())
        out.add_row(name, *shown)
    return out


def phases(rows: Mapping[str, Measured]) -> Table:
    """Median seconds of each phase that some contender has, a column for each contender."""
    from flhe.strategies.overhead import PHASES

    out = _table("the same by phase, medians", None, *rows)
    for name in PHASES:
        taken = [row.times[name].median if name in row.times else None for row in rows.values()]
        if any(taken):
            out.add_row(name, *("" if each is None else seconds(each) for each in taken))
    return out


def _table(title: str, caption: str | None, *headings: str) -> Table:
    how: Any = {"title": title, "caption": caption, "box": SIMPLE_HEAD, "show_edge": False}
    return Table(*columns("", *headings), **how, padding=(0, 1, 0, 0))

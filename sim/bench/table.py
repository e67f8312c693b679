"""The table that `flhe bench` prints: times, sizes, and ratios to the limits of the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from flhe_lab.bench.times import Row
from flhe_lab.bench.turns import Progress, Times

LIMIT_OF = {
    "encrypt_s": "openssl-aes-ctr",
    "add_s": "numpy-add-f32",
    "decrypt_s": "openssl-aes-ctr",
}


def table(rows: Sequence[Row]) -> Table:
    """Median times, each with its ratio to the limit of that phase (minimum by minimum)."""
    first = rows[0]
    out = Table(
        title=f"{first.values:,} values, {first.cohort} clients, {first.dropouts} dropped out, "
        f"{first.threads} thread{'s' if first.threads > 1 else ''}",
        caption="medians; below them, minimum by minimum, the ratio to AES-CTR over the keystream "
        "or to NumPy's in-cache add",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    longest = max(len(word) for row in rows for word in row.name.split())
    out.add_column("", min_width=longest)  # names break between words, numbers nowhere
    for heading in (
        "encode+\nencrypt",
        "add, a\nclient",
        "decrypt+\ndecode",
        "upload,\na value",
        "max\nerror",
    ):
        out.add_column(heading, justify="right", no_wrap=True)
    by_name = {row.name: row for row in rows}
    for row in rows:
        out.add_row(
            row.name,
            *(
                _cell(getattr(row, phase), getattr(by_name[limit], phase), own=row.name == limit)
                for phase, limit in LIMIT_OF.items()
            ),
            _size(row),
            "" if row.max_error is None else f"{row.max_error:.1e}",
            end_section=row is rows[-1] or row.kind != rows[rows.index(row) + 1].kind,
        )
    return out


def notes(rows: Sequence[Row]) -> list[str]:
    """What is said beneath the table, of what was timed."""
    sparse = (row.note for row in rows if row.name.startswith("flashe top"))
    said = (next(sparse, None), matrix_note(rows), selected_note(rows), bare_note(rows))
    return [note for note in said if note]


def matrix_note(rows: Sequence[Row]) -> str:
    """SASH's matrix form, the paper's, beside the ring; "" where they were not timed."""
    by_name = {row.name: row for row in rows}
    said = []
    for what, name in (("the mask", "sash mask"), ("the whole client", "sash")):
        ring, matrix = (by_name.get(f"{name}{form}") for form in ("", " lwr-736"))
        if ring and matrix and ring.encrypt_s and matrix.encrypt_s:
            ratio = matrix.encrypt_s.min / ring.encrypt_s.min
            median = matrix.encrypt_s.median / ring.encrypt_s.median
            said.append(f"{ratio:,.0f}x {what} ({median:,.0f}x by medians)")
    return f"The paper's form, LWR with mu = 736, takes {' and '.join(said)}." if said else ""


def selected_note(rows: Sequence[Row]) -> str:
    """What selecting costs beyond the clear part, against encrypting all; "" where it was not timed."""
    by_name = {row.name.partition(",")[0].partition(" select")[0]: row for row in rows if row.name}
    found = [row for row in rows if row.name.startswith("fedml-he select")]
    everything = next((row for row in rows if row.name == "fedml-he"), None)
    clear = by_name.get("its clear part")
    if not found or everything is None or clear is None:
        return ""
    least, middle = (
        (_whole(found[0], how) - _whole(clear, how)) / _whole(everything, how)
        for how in ("min", "median")
    )
    sizes = [row.upload_bytes or 0 for row in (found[0], clear, everything)]
    return (
        f"Beyond the clear part, {found[0].name} costs {least:.3f}x of encrypting all in time "
        f"({middle:.3f}x by medians; encode and encrypt, one addition, decrypt and decode), "
        f"{(sizes[0] - sizes[1]) / sizes[2]:.3f}x in bytes."
    )


def bare_note(rows: Sequence[Row]) -> str:
    """FedML-HE against TenSEAL alone; "" where one of them was not timed."""
    everything = next((row for row in rows if row.name == "fedml-he"), None)
    bare = next((row for row in rows if row.name == "tenseal-ckks-8192-60-60"), None)
    if everything is None or bare is None:
        return ""
    least, middle = (_whole(everything, how) / _whole(bare, how) for how in ("min", "median"))
    return (
        f"FedML-HE, quantizing and all, takes {least:.3f}x of TenSEAL alone ({bare.name}), "
        f"{middle:.3f}x by medians."
    )


def _whole(row: Row, how: str) -> float:
    """Seconds of all three phases."""
    phases = (row.encrypt_s, row.add_s, row.decrypt_s)
    return float(sum(getattr(phase, how) for phase in phases if phase is not None))


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """Show a bar over the turns, refreshed between timings only, so that it costs them nothing."""
    with Bar(console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("warming up", total=None)

        def advance(turn: int, turns: int, name: str) -> None:
            bar.update(task, total=turns, completed=turn, description=name)
            bar.refresh()

        yield advance


def _cell(times: Times | None, limit: Times | None, *, own: bool) -> str:
    if times is None:
        return ""
    ratio = "" if own or limit is None else f"\n{_short(times.min / limit.min)}x"
    return f"{_seconds(times.median)}{ratio}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3f} ms"
    return f"{seconds:.3f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _size(row: Row) -> str:
    if row.upload_bytes is None or row.bytes_per_value is None:
        return ""
    return f"{row.upload_bytes / 1e6:.2f} MB\n{row.bytes_per_value:.2f} B"

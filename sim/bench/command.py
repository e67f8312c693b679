"""What `flhe bench` does: measure, write the data, print a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flhe.json_option import console, write_json
from flhe.packages import require
from flhe.sim.bench import times as bench
from flhe.sim.bench.machine import machine
from flhe.sim.bench.table import (
    bare_note,
    matrix_note,
    progress,
    round_table,
    selected_note,
    table,
)


def times(
    schemes: Sequence[str] | None,
    *,
    values: int | None,
    cohort: int | None,
    dropouts: int,
    threads: int,
    repeats: int | None,
    peers: bool,
    top_k: float | None,
    select: float | None,
    json_file: Path | None,
) -> None:
    """Time encryption, addition and decryption of one update."""
    from flhe.sim.bench.contender import Setting

    setting = Setting(
        1_200_000 if values is None else values, 10 if cohort is None else cohort, dropouts, threads
    )
    with progress(Console(stderr=True)) as advance:
        rows = bench.bench(
            schemes or ["flashe", "plain"],
            setting,
            repeats=20 if repeats is None else repeats,
            with_peers=peers,
            top_k=top_k,
            select=select,
            progress=advance,
        )
    if json_file is not None:
        write_json(json_file, bench.to_json(rows))
    out = console(json_file)
    out.print(table(rows))
    if note := next((row.note for row in rows if row.name.startswith("flashe top")), None):
        out.print(note)
    for beside in (matrix_note(rows), selected_note(rows), bare_note(rows)):
        if beside:
            out.print(beside)


def whole_rounds(
    *, cohort: int | None, threads: int, repeats: int | None, json_file: Path | None
) -> None:
    """Time rounds of a federation, training and all."""
    from flhe.sim.round_cost import round_cost

    cohort = 10 if cohort is None else cohort
    with progress(Console(stderr=True)) as advance:
        cost = round_cost(
            cohort=cohort,
            rounds=3 if repeats is None else repeats,
            threads=threads,
            progress=advance,
        )
    if json_file is not None:
        found = {"machine": machine(), "round": cost.to_json()}
        write_json(json_file, json.dumps(found, indent=2))
    console(json_file).print(round_table(cost, cohort))


def memory(
    *, values: int | None, cohort: int | None, repeats: int | None, json_file: Path | None
) -> None:
    """Measure what processes hold; raises Stopped on a signal, with all of them stopped."""
    from flhe.apps import launch
    from flhe.sim import memory as measuring

    sizes = {"values": values, "nodes": cohort, "rounds": repeats}
    given = {name: size for name, size in sizes.items() if size is not None}
    with launch.signals(), progress(Console(stderr=True)) as advance:
        rows = measuring.memory(**given, progress=advance)
    if json_file is not None:
        write_json(json_file, measuring.to_json(rows))
    console(json_file).print(measuring.table(rows))


def mask_counts(path: Path) -> None:
    """Count FLASHE's masks as clients drop out: a figure, and its data beside it."""
    from flhe.sim.mask_counts import report

    Console().print(report(path))


def privacy_audit(out: Path, *, quick: bool, **how: Any) -> None:
    """Attack what a server sees: a picture, a curve, their data, and what was found in words."""
    require("`flhe audit`", "apps", ("torch", "matplotlib", "sklearn"))
    from flhe.sim import privacy_audit as auditing

    with progress(Console(stderr=True)) as advance:
        found = auditing.run(out, quick=quick, progress=advance, **how)
    Console().print(auditing.table(found))
    for line in auditing.words(found):
        Console().print(line, highlight=False)
    Console().print(f"Picture: {out}", highlight=False, soft_wrap=True)

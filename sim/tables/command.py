"""`flhe tables`: measure, write, say what was made.

A section's module is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.errors import ConfigError, FlheError

if TYPE_CHECKING:
    from flhe_lab.tables.table import Section

MODULES = (
    "headlines",
    "flashe_rounds",
    "flashe_masks",
    "batchcrypt",
    "esafl_packing",
    "fedml_costs",
    "sash_times",
    "evaluation",
    "scale",
)
"""Modules of this package that have SECTIONS."""


def sections(names: Sequence[str] = ()) -> tuple[Section, ...]:
    """Those of these names, or of these papers ("flashe"); all without names.

    Raises ConfigError: a name that no section has.
    """
    everything = tuple(
        section
        for module in MODULES
        for section in import_module(f"flhe_lab.tables.{module}").SECTIONS
    )
    if not names:
        return everything
    asked = [name.lower() for name in names]
    known = {n for s in everything for n in (s.name, s.paper.lower())}
    for name in set(asked) - known:
        raise ConfigError(f"{name!r}: choose from {', '.join(s.name for s in everything)}")
    return tuple(s for s in everything if s.name in asked or s.paper.lower() in asked)


def tables(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]...",
            help="Tables and figures, or papers: see --list. All unless said.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="Everything, about an hour, to be stopped and gone on with at will; or in five "
            "minutes what small samples tell.",
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where results.md goes, and results/ with all it shows."),
    ] = Path(),
    data_dir: Annotated[
        str,
        typer.Option(
            envvar="FLHE_DATA_DIR",
            help="Where data sets lie; learning curves that have none are left out.",
        ),
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw", help="Measure nothing: write pages and pictures anew of what is kept."
        ),
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the sections, and measure nothing.")
    ] = False,
) -> None:
    """Measure the papers' tables and figures on this machine, beside what one might use instead."""
    from rich.console import Console
    from rich.table import Table

    from flhe_lab.bench.table import progress
    from flhe_lab.tables.runner import run
    from flhe_lab.tables.table import Plan

    chosen = sections(names or ())
    console = Console()
    if listing:
        table = Table("section", "paper", "regenerates")
        for section in chosen:
            table.add_row(section.name, section.paper, ", ".join(section.covers))
        console.print(table)
        return
    plan = Plan(quick=not full, data_dir=data_dir)
    try:
        with progress(Console(stderr=True)) as advance:
            made = run(
                chosen, plan, out, others=sections(), fresh=fresh, redraw=redraw, progress=advance
            )
    except KeyboardInterrupt:
        how = "the same command without --fresh" if fresh else "the same command"
        Console(stderr=True).print(f"stopped; what was measured is kept, {how} goes on")
        raise
    console.print(f"{made.measured} measured now, {made.kept} kept from before.")
    if made.foreign:
        count = len(made.foreign)
        console.print(f"{count} measurements of another machine or release were made again.")
    console.print(f"Page: {made.page}", highlight=False, soft_wrap=True)
    if made.failures:
        said = "; ".join(f"{what}: {why}" for what, why in made.failures)
        raise FlheError(f"{len(made.failures)} measurements failed, all else is there: {said}")

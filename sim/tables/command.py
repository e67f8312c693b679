"""`flhe tables`: measure, write, and print the result.

A section's module is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.answer import Answer, notes, table
from flhe.command_group import option
from flhe.errors import ConfigError

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
            help="Tables and figures, or papers, as --list has them; default: all.",
        ),
    ] = None,
    full: Annotated[
        bool,
        option(
            "Everything, for about an hour in all, or five minutes of small samples. A stopped "
            "run can go on.",
            None,
            "--full/--quick",
        ),
    ] = False,
    out: Annotated[
        Path,
        option("Directory of results.md, and of results/ with all that it shows.", "DIR"),
    ] = Path(),
    data_dir: Annotated[
        str,
        option(
            "Directory of data sets; learning curves without one are left out.",
            envvar="FLHE_DATA_DIR",
        ),
    ] = "",
    fresh: Annotated[
        bool, option("Repeat the measurements of earlier runs.", None, "--fresh")
    ] = False,
    redraw: Annotated[
        bool,
        option(
            "Write pages and pictures of kept measurements again; measure nothing.",
            None,
            "--redraw",
        ),
    ] = False,
    listing: Annotated[
        bool, option("List the sections, and measure nothing.", None, "--list")
    ] = False,
) -> Answer:
    """Measure the papers' tables and figures on this machine, beside alternatives."""
    from flhe_lab.bench.table import progress
    from flhe_lab.redraw import redraw as redraw_others
    from flhe_lab.tables.runner import run
    from flhe_lab.tables.table import Plan

    chosen = sections(names or ())
    if listing:
        listed = [{"section": s.name, "paper": s.paper, "regenerates": s.covers} for s in chosen]
        rows = ((s.name, s.paper, "\n".join(s.covers)) for s in chosen)
        return Answer(listed, table(listed[0], rows))
    plan = Plan(quick=not full, data_dir=data_dir)
    try:
        with progress() as advance:
            made = run(
                chosen, plan, out, others=sections(), fresh=fresh, redraw=redraw, progress=advance
            )
    except KeyboardInterrupt:
        how = "the same command without --fresh" if fresh else "the same command"
        notes().print(f"stopped; finished measurements are kept, and {how} goes on")
        raise
    if redraw and (out / "privacy_results.json").exists():  # the project's own pages
        redraw_others(out, out)
    text = [f"{made.measured} measured now, {made.kept} kept from before."]
    if made.foreign:
        count = len(made.foreign)
        text.append(f"{count} measurements of another machine or release were made again.")
    text.append(f"Page: {made.page}")
    if made.failures:
        said = "; ".join(f"{step}: {why}" for step, why in made.failures)
        text.append(f"{len(made.failures)} measurements failed, the others are there: {said}")
    counts = {"measured": made.measured, "kept": made.kept, "made_again": len(made.foreign)}
    data = {"page": made.page, **counts, "failures": dict(made.failures)}
    return Answer(data, "\n".join(text), failed=bool(made.failures))

"""Tables 4 and 7 of FedML-HE's paper, measured again: full encryption, and encryption of a part.

    python -m flhe.sim.fedml_tables [--full] [--json FILE] [--figure FILE.png]

Three clients, vectors of the models' lengths, Gaussian with sigma 0.02 (lengths alone matter), one
thread; the paper had an 8-core i7-7700 and PALISADE. Who takes part (`fedml_ways`, `fedml_ours`):

- *plain*: FedAvg in clear, float32;
- *ours*: 16 bits a value, CKKS at its default parameters, half of each ciphertext derived;
- *TenSEAL*: bare, float32, ring dimension 8192 with one level; weights multiplied by the server as in
  the paper, or by clients as in NVIDIA FLARE. For Table 7, the rest of the vector is float32.

Seconds are one client's encryption, the server's aggregation and one client's decryption, one after
the other, of the processor. A ratio is to *plain* of the same model, as in the paper; of linear models
and the like it compares overheads of calls. Vectors beyond SAMPLE are cut to it, timed, and times and
bytes projected: "sampled". With --full only TenSEAL's are, beyond THEIRS. Everything else is
"measured", what the tables say is "paper".

p = 0 of ours encrypts one value and the extras, which always are; of TenSEAL it is plain. "Beyond the
clear part" is (t(p) - t(0)) / (t(1) - t(0)): 0.14 at p = 0.1 by the paper's own Table 7.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.errors import FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.sim import figures
from flhe.sim.bench import Progress, machine, pinned
from flhe.sim.fedml_models import COHORT, TABLE_4, TABLE_7, VIT, Model, Selection
from flhe.sim.fedml_ours import OurWay
from flhe.sim.fedml_ways import Cost, PlainWay, SelectedWay, TensealWay, Vector, Way

FORMAT, VERSION = "flhe fedml-he tables", 1

SAMPLE = 1 << 21
"""Values that are taken of longer vectors, unless all are asked for."""

THEIRS = 1 << 24
"""Values that are taken for TenSEAL at most: 4096 ciphertexts cost each what 20,000 do."""

REPEATS = 5
ENOUGH_S = 4.0
"""Seconds after which a way is not timed again; of several times, the median total counts."""

Costs = dict[str, Cost]
"""Way -> cost."""

Table4 = dict[Model, Costs]
Table7 = dict[Selection, Costs]


def updates_of(values: int) -> list[Vector]:
    """One update a client, always the same."""
    rng = np.random.default_rng(2)  # test data; keys and masks never come from here
    return [rng.standard_normal(values, np.float32) * np.float32(0.02) for _ in range(COHORT)]


def mask_of(values: int, ratio: float) -> Support | None:
    """The selection of a random share; None for all, one value for p = 0."""
    if ratio == 1:
        return None
    if ratio == 0:
        return Support.of(np.zeros(1, np.uint32), values)
    return Select(ratio, "random").fixed(Layout((Entry("update", (values,), "float32"),)))


def timed(way: Way, updates: Sequence[Vector], values: int) -> Cost:
    """The median of several runs, projected where the updates are a sample of `values`."""
    began, found = time.perf_counter(), list[Cost]()
    while len(found) < REPEATS and (not found or time.perf_counter() - began < ENOUGH_S):
        found.append(way.cost(updates))
    found.sort(key=lambda cost: cost.total_s)
    return found[(len(found) - 1) // 2].projected(values)


def table_4(models: Sequence[Model], sample: int | None, say: Callable[[str], None]) -> Table4:
    """Everything encrypted, by everybody, for each model; `say` is told what is going on."""
    ways: list[Way] = [PlainWay(), OurWay(), TensealWay(True), TensealWay(False)]
    _warm_up(ways)
    found: Table4 = {}
    for model in models:
        updates = updates_of(min(model.values, sample or model.values))
        found[model] = {}
        for way in ways:
            say(f"{model.name}: {way.name}")
            found[model][way.name] = timed(way, updates, model.values)
    return found


def table_7(
    selections: Sequence[Selection], values: int, sample: int | None, say: Callable[[str], None]
) -> Table7:
    """A part encrypted, of vectors of `values`; `say` is told what is going on."""
    updates = updates_of(min(values, sample or values))
    size, part = updates[0].size, [update[:THEIRS] for update in updates]
    plain, tenseal = PlainWay(), TensealWay(True)
    _warm_up([plain, tenseal, OurWay(), OurWay(mask_of(1000, 0.5))])
    say(f"{VIT.name}: {plain.name}")
    in_clear = timed(plain, updates, values)
    found: Table7 = {}
    for selection in selections:
        ours = OurWay(mask_of(size, selection.ratio))
        say(f"p = {selection.ratio:g}: {ours.name}")
        found[selection] = {plain.name: in_clear, ours.name: timed(ours, updates, values)}
        say(f"p = {selection.ratio:g}: {tenseal.name}")
        mask = mask_of(part[0].size, selection.ratio)
        theirs: Way = tenseal if mask is None else SelectedWay(tenseal, mask)
        cost = timed(theirs, part, values) if selection.ratio else in_clear
        found[selection][tenseal.name] = cost
    return found


def _warm_up(ways: Sequence[Way]) -> None:
    """Have everything loaded and compiled that the first run would wait for."""
    updates = updates_of(1000)
    for way in ways:
        way.cost(updates)


def beyond_clear(costs: Table7, way: str, ratio: float) -> tuple[float, float]:
    """What encrypting `ratio` costs of encrypting all, beyond p = 0: in time, and in bytes."""
    by_ratio = {selection.ratio: each[way] for selection, each in costs.items()}
    none, some, everything = by_ratio[0.0], by_ratio[ratio], by_ratio[1.0]
    return (
        (some.total_s - none.total_s) / (everything.total_s - none.total_s),
        (some.upload_bytes - none.upload_bytes) / (everything.upload_bytes - none.upload_bytes),
    )


def to_data(four: Table4, seven: Table7) -> dict[str, Any]:
    """What was measured, with the paper's figures beside it, as JSON values."""

    def row(cost: Cost, plain: Cost) -> dict[str, Any]:
        return {
            **asdict(cost),
            "origin": cost.origin,
            "total_s": cost.total_s,
            "comp_ratio": cost.total_s / plain.total_s,
            "comm_ratio": cost.upload_bytes / plain.upload_bytes,
        }

    def rows(costs: Costs) -> dict[str, Any]:
        return {name: row(cost, costs[PlainWay.name]) for name, cost in costs.items()}

    ways = [name for name in next(iter(seven.values()), {}) if name != PlainWay.name]
    complete = {0.0, 1.0} <= {selection.ratio for selection in seven}
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": {**machine(), "tenseal": version("tenseal"), "threads": 1},
        "cohort": COHORT,
        "unit": "processor seconds: one client's encryption, the server's aggregation, one client's "
        "decryption; bytes: one client's; origin: measured in whole, or sampled and projected; ratios: "
        "to plain",
        "table 4": [
            {
                "model": model.name,
                "values": model.values,
                "paper": asdict(model),
                "ours": rows(costs),
            }
            for model, costs in four.items()
        ],
        "table 7": [
            {"ratio": selection.ratio, "paper": asdict(selection), "ours": rows(costs)}
            for selection, costs in seven.items()
        ],
        "beyond the clear part": {
            name: {
                f"{selection.ratio:g}": beyond_clear(seven, name, selection.ratio)
                for selection in seven
            }
            for name in ways
            if complete
        },
    }


def measure(*, full: bool = False, progress: Progress | None = None) -> tuple[Table4, Table7]:
    """Both tables, on one thread."""
    steps, done = 4 * len(TABLE_4) + 2 * len(TABLE_7) + 1, 0

    def say(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, steps, what)
        done += 1

    sample = None if full else SAMPLE
    with pinned(1):
        return table_4(TABLE_4, sample, say), table_7(TABLE_7, VIT.values, sample, say)


def command(
    full: Annotated[bool, typer.Option("--full", help="Whole vectors: ten minutes.")] = False,
    json_file: JsonFile = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE.png", help="Draw the results.")
    ] = None,
) -> None:
    """Measure Tables 4 and 7 of FedML-HE's paper again."""
    from flhe.sim.bench_table import progress
    from flhe.sim.fedml_plot import plot
    from flhe.sim.fedml_report import tables

    try:
        if figure is not None:
            figures.check(figure)
        with progress(Console(stderr=True)) as advance:
            four, seven = measure(full=full, progress=advance)
        if json_file is not None:
            write_json(json_file, json.dumps(to_data(four, seven), indent=2))
        if figure is not None:
            plot(four, seven, figure)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    for table in tables(four, seven):
        console(json_file, 118).print(table)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()

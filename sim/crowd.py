"""A federation of hundreds in one process under SASH: whether it finishes, its size, what travels.

    python -m flhe.sim.crowd [--clients 200] [--values 100000] [--rounds 3] [--drops 0.1] [--json FILE]

Every message goes through Flower's wire format and every node keeps its state on disk, as in a
deployment. Clients add a known number instead of training, so that the model tells whether the sums
were exact. Who drops out, and at which stage, follows from the round.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from flwr.app import ArrayRecord
from rich.console import Console
from rich.table import Table

from flhe.apps.dropouts import dropout, drops_at
from flhe.coding.quantize import Quantize
from flhe.errors import FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.resident import resident
from flhe.schemes.sash import most_bits
from flhe.sim.bench import machine, quiet
from flhe.sim.bench.synthetic import STEP, client_app, initial, sash_strategy, warm_up
from flhe.sim.bench.table import progress
from flhe.sim.inproc import InProcessGrid
from flhe.sim.phases import PhaseGrid, masking_bytes
from flhe.strategies.report import RoundReport

TIMEOUT_S = 3600.0


@dataclass(slots=True)
class Crowd:
    """What a federation took.

    Parameters
    ----------
    agreement_s : float
        Seconds of the key agreement, once an epoch.
    rounds_s : list of float
        Seconds of each round.
    peak_bytes : int
        Most that was resident, all nodes and the server together.
    masking_bytes : int
        What the masking-key agreement of a round moved for one client, up and down, at most.
    upload_bytes : int
        One client's ciphertext.
    error : float
        Largest error of the final model.
    """

    clients: int
    values: int
    drops: int
    survivors: list[int] = field(default_factory=list)
    agreement_s: float = 0.0
    rounds_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    masking_bytes: int = 0
    upload_bytes: int = 0
    error: float = 0.0


def federate(
    clients: int,
    values: int,
    rounds: int,
    drops: int,
    scratch: Path,
    finished: Any = None,
    neighbours: int = 0,
) -> Crowd:
    """Run one; FlheError where the model is not what it should be."""
    crowd = Crowd(clients, values, drops)
    warm_up()
    inside = InProcessGrid(
        client_app(dropout),
        clients,
        run_config={"scheme": "sash", "nodes": clients, "drops": drops},
        node_config=lambda i: {
            "flhe-home": str(scratch / f"node-{i}"),
            "flhe-trust": "first-use",
            "flhe-server-reads": True,
        },
    )
    grid = PhaseGrid(inside)

    def note(report: RoundReport) -> None:
        crowd.rounds_s.append(report.round_s)
        crowd.survivors.append(report.survivors)
        if finished is not None:
            finished(report.round)

    start = initial(values)
    strategy = sash_strategy(clients, TIMEOUT_S, note, neighbours)
    try:
        result = strategy.start(grid, start, rounds)
    finally:
        inside.close()
    grid.end()
    crowd.agreement_s = sum(phase.wall_s for phase in grid.phases if phase.round == 0)
    crowd.peak_bytes = resident("VmHWM")
    crowd.masking_bytes = masking_bytes(grid.phases)
    crowd.upload_bytes = max(max(phase.uploads.values(), default=0) for phase in grid.phases)
    crowd.error = error_of(result.arrays, start, clients, rounds, drops)
    return crowd


def _stay(clients: int, round_: int, drops: int) -> list[int]:
    """Clients whose update is in the sum of a round."""
    if not drops:
        return list(range(clients))
    places = [drops_at(0, round_, i, clients, drops) for i in range(clients)]
    return [i for i, place in enumerate(places) if place not in ("round", "answer")]


def error_of(
    arrays: ArrayRecord, start: ArrayRecord, clients: int, rounds: int, drops: int
) -> float:
    """Largest difference of the final model from the one that the survivors' steps make.

    A rounded value may be off by a step of the grid; the mean over all values of one round by no more
    than chance allows, which finds one missing client of a thousand.

    Parameters
    ----------
    arrays, start : ArrayRecord
        The final model, and the initial one.
    clients, rounds, drops : int
        Whose steps, how often, and how many of them drop out of a round.

    Raises
    ------
    FlheError
        It is another model.
    """
    step, variance = 0.0, 0.0
    grain = 1 / Quantize(most_bits(clients)).levels
    values = sum(array.numpy().size for array in start.values())
    for round_ in range(1, rounds + 1):
        there = _stay(clients, round_, drops)
        step += float(np.mean([float(STEP) * (1 + i) for i in there]))
        variance += grain**2 / 4 / len(there) / values
    off = [arrays[name].numpy().astype(np.float64) - start[name].numpy() - step for name in start]
    worst = max(float(np.abs(each).max()) for each in off)
    mean = abs(sum(float(each.sum()) for each in off)) / values
    if not (worst <= rounds * (grain + 1e-6) and mean <= 8 * variance**0.5 + 1e-6):
        raise FlheError(
            f"the model is off by {worst:.3g}, {mean:.3g} on average: its sums were not the "
            "survivors'"
        )
    return worst


def table(crowd: Crowd) -> Table:
    """What one federation took."""
    out = Table(title=f"SASH, {crowd.clients} clients, {crowd.values:,} values", show_header=False)
    out.add_column("")
    out.add_column("", justify="right")
    plain = 4 * crowd.values
    for name, value in (
        ("dropouts a round", f"{crowd.drops}"),
        ("updates in the sums", ", ".join(map(str, crowd.survivors))),
        ("key agreement, once", f"{crowd.agreement_s:.1f} s"),
        ("a round", f"{min(crowd.rounds_s):.1f} to {max(crowd.rounds_s):.1f} s"),
        ("peak memory, all of them", f"{crowd.peak_bytes / 2**30:.2f} GiB"),
        ("upload, a client", f"{crowd.upload_bytes / plain:.3f}x float32"),
        ("masking-key agreement, a client", f"{crowd.masking_bytes / 1e3:.0f} kB"),
        ("largest error of the model", f"{crowd.error:.1e}"),
    ):
        out.add_row(name, value)
    return out


def main(
    clients: Annotated[int, typer.Option(help="Clients.")] = 200,
    values: Annotated[int, typer.Option(help="Values in the model.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 3,
    drops: Annotated[float, typer.Option(help="Share of clients that drop out of a round.")] = 0.1,
    neighbours: Annotated[
        int, typer.Option(help="Clients among whom each shares its seed (SASH+); 0: all.")
    ] = 0,
    json_file: JsonFile = None,
) -> None:
    """Run a federation of many clients in this process."""
    with (
        quiet(),
        tempfile.TemporaryDirectory(prefix="flhe-crowd-") as scratch,
        progress(Console(stderr=True)) as advance,
    ):
        crowd = federate(
            clients,
            values,
            rounds,
            round(drops * clients),
            Path(scratch),
            lambda n: advance(n, rounds, f"round {n} done"),
            neighbours,
        )
    if json_file is not None:
        write_json(json_file, json.dumps({"machine": machine(), "crowd": asdict(crowd)}, indent=2))
    console(json_file).print(table(crowd))


if __name__ == "__main__":
    typer.run(main)

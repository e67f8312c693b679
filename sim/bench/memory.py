"""`flhe bench --memory`: what one node and the server hold at most in each phase of a round.

Two rounds of a made-up model among three nodes. Each message is answered by a process of its own
(`flhe_lab.bench.apart`), so a peak is one node's. At the end the model is compared with what the nodes
added.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from flhe.coding.update import update_codec
from flhe.errors import ConfigError, FlheError
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.registry import SCHEMES
from flhe.strategies import HEStrategy, save_sealed
from flhe.strategies.overhead import ADD
from flhe.strategies.report import RoundReport
from flhe_lab.bench.apart import WAIT_S, Apart
from flhe_lab.bench.host import machine, quiet
from flhe_lab.bench.synthetic import STEP, initial
from flhe_lab.bench.table import columns
from flhe_lab.bench.turns import Progress, silent

NODES, ROUNDS = 3, 2
OWN = {"app": 2, "encode": 1}
"""Models that the app holds in a phase: what it was given and its result, then its result."""
SERVER = "server: fold"


@dataclass(frozen=True, slots=True)
class Held:
    """A phase: median seconds of its messages, and the most bytes held beyond the app's own arrays."""

    phase: str
    seconds: float
    peak_bytes: int


def measure(scheme: str, values: int, progress: Progress = silent) -> list[Held]:
    """Run the rounds; return the phases of the last one and of the checkpoint after it.

    Raises ConfigError: a scheme that is not known; FlheError: a result that is not the sum.
    """
    if scheme not in SCHEMES.own:
        raise ConfigError(f"unknown scheme {scheme!r}; choose from {', '.join(SCHEMES.own)}")
    if sys.platform != "linux":
        raise ConfigError("--memory: only Linux tells a process's peak by phase; run it there")
    chosen, start, ends = SCHEMES.named(scheme)(), initial(values), [0]
    added: list[tuple[float, int]] = []
    with (
        tempfile.TemporaryDirectory(prefix="flhe-memory-") as name,
        quiet(),
        Apart(NODES, Path(name), progress) as grid,
    ):

        def note(report: RoundReport) -> None:
            ends.append(len(grid.peaks))
            fold = next(phase for phase in report.phases if phase.name == ADD)
            # The caller of `start` holds the first model.
            added.append((fold.seconds / NODES, (fold.server_bytes or 0) - 4 * values))

        run = HEStrategy(
            chosen,
            update_codec(bits=chosen.default_bits, weighted=False),
            train_metrics=(),
            min_train_nodes=NODES,
            min_available_nodes=NODES,
            fraction_evaluate=0.0,
            round_timeout=WAIT_S,
            stage_timeout=WAIT_S,
            on_round=note,
        )
        result = run.start(grid, start, ROUNDS, timeout=WAIT_S)
        if chosen.reader == "clients":
            sealed = Path(name) / "model.flhe"
            save_sealed(result, sealed)
            result.arrays.clear()
            after = open_checkpoint(sealed, Path(name) / "node-0").masters
        else:
            after = {key: array.numpy() for key, array in result.arrays.items()}
        _check(start, after)
    return [*_phases(grid.peaks[ends[-2] :], 4 * values), Held(SERVER, *added[-1])]


def _phases(peaks: Sequence[Mapping[str, Any]], model: int) -> list[Held]:
    found: dict[str, list[tuple[float, int]]] = {}
    for each in peaks:
        phase = each["phase"]
        if phase != "start":
            own = OWN.get(phase, 0) * model if each["stage"] == "round" else 0
            found.setdefault(f"{each['stage']}: {phase}", []).append(
                (each["seconds"], each["peak_bytes"] - own)
            )
    return [
        Held(phase, statistics.median(s for s, _ in parts), max(b for _, b in parts))
        for phase, parts in found.items()
    ]


def _check(start: ArrayRecord, after: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model that is not the first one and what nodes added; FlheError."""
    mean = ROUNDS * STEP * sum(range(1, NODES + 1)) / NODES
    for name, array in start.items():
        if np.abs(after[name] - array.numpy() - mean).max(initial=0) > STEP / 8:
            raise FlheError("the model is not what the nodes have made")


def to_data(rows: Sequence[Held], scheme: str, values: int) -> dict[str, Any]:
    """Machine and rows, as JSON values."""
    known = {"scheme": scheme, "values": values, "nodes": NODES}
    return {"machine": machine(), **known, "rows": [asdict(row) for row in rows]}


def table(rows: Sequence[Held], scheme: str, values: int) -> Table:
    """Seconds and peaks of each phase."""
    out = Table(
        *columns("", "seconds", "peak, GB", "to a model"),
        title=f"{scheme}, {values:,} values: a model of {values / 2.5e8:.3g} GB, {NODES} nodes",
        caption="seconds: the median of the nodes; peak: the most of one process beyond the app's own "
        "arrays (what it was given, and its result)",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    for row in rows:
        peak = row.peak_bytes
        cells = f"{row.seconds:.2f}", f"{peak / 1e9:.2f}", f"{peak / (4 * values):.2f}x"
        out.add_row(row.phase, *cells)
    return out

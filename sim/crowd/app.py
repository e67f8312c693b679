"""The Flower app of `flhe crowd`: SASH on a made-up model, each node and the server under a clock.

Nodes add known numbers, so that the model tells whether sums were exact. Each actor of Flower's engine
appends what its nodes took to a file of its own: what it told the server would be measured too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flhe.coding.quantize import Quantize
from flhe.errors import FlheError
from flhe.mods import records
from flhe.schemes.sash.adder import most_bits
from flhe.strategies.overhead import resident
from flhe_app.dropouts import dropout, drops_at
from flhe_lab.bench import synthetic
from flhe_lab.bench.synthetic import STEP, initial, reporting_app

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flhe.strategies.report import Reporter

Next = Callable[["Message", "Context"], "Message"]


def clock(message: Message, context: Context, call_next: Next) -> Message:
    """A mod in front of all others: notes processor seconds of one message."""
    record = records.find_config(message.content, records.STAGE)
    busy = time.process_time()
    reply = call_next(message, context)
    line = {
        "stage": "other" if record is None else str(record["stage"]),
        "cpu_s": time.process_time() - busy,
        "peak": resident("VmHWM"),
        "failed": reply.has_error(),
    }
    path = Path(str(context.run_config["clocks"])) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return reply


def client_app() -> ClientApp:
    """The client: adds a number to each value, drops out where it is its turn."""
    return synthetic.client_app(clock, dropout)


def server_app() -> ServerApp:
    """The server: runs the rounds, checks the model, and writes down what each phase took."""
    from flhe.strategies import SashFedAvg
    from flhe_lab.crowd.phases import PhaseGrid, Window

    def work(grid: Grid, config: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
        nodes, rounds, timeout = config["nodes"], config["rounds"], config["timeout"]
        noted = PhaseGrid(Window(grid))
        start = initial(config["values"])
        run = SashFedAvg(
            clip=1.0,
            weighted=False,
            train_metrics=(),
            min_train_nodes=nodes,
            min_evaluate_nodes=3,
            min_available_nodes=nodes,
            fraction_evaluate=0.0,
            round_timeout=timeout,
            stage_timeout=timeout,
            connect_timeout=min(timeout, 60.0),
            on_round=reporter.round,
        )
        result = run.start(noted, start, rounds)
        noted.end()
        return {
            "peak": resident("VmHWM"),
            "error": error_of(result.arrays, start, nodes, rounds, config["drops"]),
            "phases": [asdict(phase) for phase in noted.phases],
        }

    return reporting_app(work)


def error_of(
    arrays: ArrayRecord, start: ArrayRecord, clients: int, rounds: int, drops: int
) -> float:
    """Largest difference of the final model from the one that the survivors' steps make.

    A rounded value may be off by a step of the grid; the mean over all values of one round by no more
    than chance allows, which finds one missing client of a thousand.

    Raises FlheError: it is another model.
    """
    step, variance = 0.0, 0.0
    grain = 1 / Quantize(most_bits(clients)).levels
    values = sum(array.numpy().size for array in start.values())
    for round_ in range(1, rounds + 1):
        places = [drops_at(0, round_, i, clients, drops) if drops else None for i in range(clients)]
        there = [i for i, place in enumerate(places) if place not in ("round", "answer")]
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

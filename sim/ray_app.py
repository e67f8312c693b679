"""The Flower app of `ray_crowd`: SASH on a made-up model, each node and the server under a clock.

Nodes add known numbers, as in `crowd`. Each actor of Flower's engine appends what its nodes took to a
file of its own, since what a node tells the server would be part of what is measured.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe import records
from flhe.resident import resident
from flhe.sim.bench.synthetic import (
    APP,
    client_app,
    initial,
    sash_strategy,
    warm_up,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flhe.sim.phases import PhaseGrid
    from flhe.strategies.report import Reporter

TELL_S = 0.5

CONFIG = """\
values = 1000
nodes = 3
rounds = 1
neighbours = 0
drops = 0
scheme = "sash"
timeout = 600.0
report = ""
clocks = ""
"""

FILES = {
    "pyproject.toml": APP["pyproject.toml"].partition("values =")[0] + CONFIG,
    "server_app.py": "from flhe.sim.ray_app import server\n\napp = server()\n",
    "client_app.py": "from flhe.sim.ray_app import client\n\napp = client()\n",
}
"""Files of the Flower app, by name."""

Next = Callable[["Message", "Context"], "Message"]


def clock(message: Message, context: Context, call_next: Next) -> Message:
    """A mod in front of all others: notes seconds, and processor seconds, of one message."""
    record = records.find_config(message.content, records.STAGE)
    began, busy = time.perf_counter(), time.process_time()
    reply = call_next(message, context)
    wall, processor = time.perf_counter() - began, time.process_time() - busy
    line = {
        "stage": "other" if record is None else str(record["stage"]),
        "wall_s": wall,
        "cpu_s": processor,
        "peak": resident("VmHWM"),
        "failed": reply.has_error(),
    }
    path = Path(str(context.run_config["clocks"])) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return reply


def client() -> ClientApp:
    """The client: adds a number to each value, drops out where it is its turn."""
    from flhe.apps.dropouts import dropout

    return client_app(clock, dropout)


def server() -> ServerApp:
    """The server: runs the rounds, checks the model, and writes down what each phase took."""
    from flwr.serverapp import ServerApp

    from flhe.sim.crowd import error_of
    from flhe.sim.phases import PhaseGrid, masking_bytes
    from flhe.sim.window import Window
    from flhe.strategies.report import Reporter

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        reporter = Reporter(config["report"])
        nodes, rounds, drops = config["nodes"], config["rounds"], config["drops"]
        try:
            warm_up()
            reporter.emit("idle", pid=os.getpid(), resident=resident())
            noted = PhaseGrid(Window(grid))
            start = initial(config["values"])
            run = sash_strategy(nodes, config["timeout"], reporter.round, config["neighbours"])
            with _telling(noted, reporter):
                result = run.start(noted, start, rounds)
            noted.end()
            off = error_of(result.arrays, start, nodes, rounds, drops)
        except Exception as error:
            reporter.emit("failed", error=f"{type(error).__name__}: {error}")
            raise
        reporter.emit(
            "done",
            peak=resident("VmHWM"),
            error=off,
            masking_bytes=masking_bytes(noted.phases),
            phases=[phase.to_json() for phase in noted.phases],
        )

    return app


@contextmanager
def _telling(grid: PhaseGrid, reporter: Reporter) -> Iterator[None]:
    """Reports, now and then, which phase is running and how many have answered."""
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(TELL_S):
            if grid.phases:
                phase = grid.phases[-1]
                reporter.emit("phase", phase=phase.name, round=phase.round, answers=len(phase.up))

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

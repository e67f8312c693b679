"""A whole federation in one process: a fresh one, so that the peak of its memory is its own.

python -m flhe_lab.bench.one_process VALUES CLIENTS ROUNDS SCRATCH RESULT
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from flhe.errors import FlheError
from flhe.strategies.resident import resident
from flhe_lab.bench.synthetic import client_app, initial, strategy, warm_up

TIMEOUT_S = 3600.0


def federate(
    values: int, clients: int, rounds: int, scratch: Path, finished: Callable[[int], None]
) -> tuple[int, int]:
    """Run it; returns what was resident before there was a model, and the most at any time.

    Parameters
    ----------
    values, clients, rounds : int
        Size of the model, nodes (one works at a time), rounds.
    scratch : Path
        An empty directory, for the nodes' state.
    finished : callable
        Receives the number of each round that is over.

    Raises
    ------
    FlheError
        An update is missing from a round.
    """
    from flhe.strategies.report import RoundReport
    from flhe.testing import InProcessGrid

    warm_up()
    app = client_app()
    grid = InProcessGrid(
        app,
        clients,
        node_config=lambda i: {"flhe-home": str(scratch / f"node-{i}"), "flhe-trust": "first-use"},
    )
    idle = resident()
    survivors: list[int] = []

    def note(report: RoundReport) -> None:
        survivors.append(report.survivors)
        finished(report.round)

    try:
        strategy(clients, TIMEOUT_S, note).start(grid, initial(values), rounds)
    finally:
        grid.close()
    if survivors != [clients] * rounds:
        raise FlheError(f"{clients} clients, but the rounds' sums hold {survivors} updates")
    return idle, resident("VmHWM")


def main(values: str, clients: str, rounds: str, scratch: str, result: str) -> None:
    """Append a line for each round, and one for the result, to the file `result`."""

    def say(**fields: int) -> None:
        with Path(result).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    idle, peak = federate(
        int(values), int(clients), int(rounds), Path(scratch), lambda n: say(round=n)
    )
    say(idle=idle, peak=peak)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main(*sys.argv[1:])

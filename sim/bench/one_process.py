"""A whole federation in one process: a fresh one, so that the peak of its memory is its own.

python -m flhe_lab.bench.one_process VALUES CLIENTS ROUNDS SCRATCH

It prints a line of JSON: what was resident before there was a model, and the most at any time.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from flhe.errors import FlheError
from flhe.strategies.resident import resident
from flhe_lab.bench.synthetic import client_app, initial, strategy, warm_up

TIMEOUT_S = 3600.0


def federate(values: int, clients: int, rounds: int, scratch: Path) -> dict[str, int]:
    """Run it, one node at a time, whose state is below `scratch`; bytes that were resident.

    Raises
    ------
    FlheError
        An update is missing from a round.
    """
    from flhe.testing import InProcessGrid

    warm_up()
    grid = InProcessGrid(
        client_app(),
        clients,
        node_config=lambda i: {"flhe-home": str(scratch / f"node-{i}"), "flhe-trust": "first-use"},
    )
    idle = resident()
    survivors: list[int] = []
    try:
        run = strategy(clients, TIMEOUT_S, lambda report: survivors.append(report.survivors))
        run.start(grid, initial(values), rounds)
    finally:
        grid.close()
    if survivors != [clients] * rounds:
        raise FlheError(f"{clients} clients, but the rounds' sums hold {survivors} updates")
    return {"idle": idle, "peak": resident("VmHWM")}


if __name__ == "__main__":
    logging.disable(logging.INFO)
    _values, _clients, _rounds = map(int, sys.argv[1:4])
    print(json.dumps(federate(_values, _clients, _rounds, Path(sys.argv[4]))))

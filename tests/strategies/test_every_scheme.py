"""One federation per scheme: FedAvg's mean, and a sealed result that a member opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.mods import records
from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import (
    HEStrategy,
    batchcrypt_fedavg,
    esafl_fedavg,
    fedml_he_fedavg,
    flashe_fedavg,
    sash_fedavg,
)
from tests.strategies.puppets import COUNTS, Puppets, Reference, initial
from tests.strategies.test_he_strategy import MAX, close, same, tolerance

pytestmark = pytest.mark.usefixtures("quick")

NODES, ROUNDS = 4, 2
EVERY: dict[str, Callable[..., HEStrategy]] = {
    "flashe": flashe_fedavg,
    "sash": sash_fedavg,
    "sash for the clients": lambda **how: sash_fedavg(unmask="clients", **how),
    "batchcrypt": lambda **how: batchcrypt_fedavg(clip=1.0, **how),
    "esafl": esafl_fedavg,
    "esafl with keys of a round": lambda **how: esafl_fedavg(per_round_keys=True, **how),
    "fedml-he": fedml_he_fedavg,
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("limit", [MAX, 30], ids=["", "more examples than max_examples"])
def test_it_is_fedavg_and_only_members_open_it(tmp_path: Path, name: str, limit: int) -> None:
    """Where the limit is 30, two of the nodes have more examples."""
    grid = Puppets(tmp_path, NODES)
    strategy: Any = EVERY[name](max_examples=limit)
    try:
        result = strategy.start(grid, initial(), num_rounds=ROUNDS)
    finally:
        grid.close()
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(ROUNDS):
        reference.round(range(NODES))
    if strategy.terms.reader == "server":
        for array, got in zip(
            reference.arrays.values(), result.arrays.to_numpy_ndarrays(), strict=True
        ):
            np.testing.assert_allclose(got, array, atol=1e-2)
        return
    slack = 2 * tolerance(range(NODES), ROUNDS)
    close(same(grid, range(NODES)), reference, slack)
    path = tmp_path / "model.flhe"
    path.write_bytes(b"".join(records.to_pieces(result.arrays)))
    close(open_checkpoint(path, grid.homes[1]), reference, slack)

"""Server optimizers and q-FedAvg with the real app: an encrypted run ends where Flower's own does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.mods import records
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model
from tests.apps.federation import Federated


def federate(tmp: Path, scheme: str, **config: Any) -> list[NDArray[np.float32]]:
    """The model at the end, flat: of the server in a plain run, of every node in an encrypted one."""
    common = {"num-rounds": 2, "nodes": 3, "local-epochs": 1, **config}
    run = Federated(tmp, Settings.from_config({"scheme": scheme, **common}))
    if scheme == "plain":
        return [flat(records.to_numpy(run.arrays))]
    return [flat(model.masters) for model in run.models()]


def flat(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)


def start() -> NDArray[np.float32]:
    state = new_model(task_named("digits"), 0).state_dict()
    return flat({name: tensor.numpy() for name, tensor in state.items()})


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        ({"server-optimizer": "fedavgm"}, 0.02),
        ({"server-optimizer": "fedadagrad", "server-eta": 0.01}, 0.05),
        ({"server-optimizer": "fedadam", "server-eta": 0.01}, 0.05),
        ({"server-optimizer": "fedyogi"}, 0.05),
        ({"fair-q": 0.1}, 0.02),
        ({"fair-q": 1.0, "fair-lipschitz": 2.0, "proximal-mu": 0.1}, 0.02),
    ],
    ids=str,
)
def test_encrypted_ends_where_plain_does(
    config: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    (plain,) = federate(tmp_path, "plain", **config)
    sealed = federate(tmp_path, "flashe", **config)
    assert all(model.tobytes() == sealed[0].tobytes() for model in sealed)  # on every node
    moved = np.linalg.norm(plain - start())
    assert np.linalg.norm(sealed[0] - plain) < tolerance * moved

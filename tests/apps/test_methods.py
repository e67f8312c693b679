"""Optimizers, q-FedAvg and FedSGD: encrypted runs end where Flower's and torch's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.mods import records
from flhe_app.settings import Settings
from tests.apps.federation import Federated, flat

FEDAVG: dict[str, Any] = {"num_rounds": 2, "local_epochs": 1}
FEDSGD: dict[str, Any] = {"num_rounds": 2, "algorithm": "fedsgd"}
SGD = {**FEDSGD, "client_optimizer": "sgd", "client_lr": 0.1}
ADAM = {**FEDSGD, "client_lr": 0.003, "bits": 32}
RMSPROP = {**ADAM, "client_optimizer": "rmsprop", "client_lr": 0.001, "client_decay": 0.1}


@pytest.mark.parametrize(
    ("scheme", "config", "tolerance"),
    [
        ("flashe", {**FEDAVG, "server_optimizer": "fedadam", "server_eta": 0.01}, 0.05),
        ("flashe", {**FEDAVG, "fair_q": 1.0, "fair_lipschitz": 2.0, "proximal_mu": 0.1}, 0.02),
        # Fine steps: Adam and RMSprop move a weight as far for a tiny gradient, and for what rounding
        # makes of it, as for a large one.
        ("flashe", {**SGD, "client_momentum": 0.9}, 0.01),
        ("flashe", RMSPROP, 1e-3),
        ("esafl", ADAM, 1e-3),
    ],
    ids=str,
)
def test_encrypted_ends_where_plain_does(
    scheme: str, config: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    clear = {name: value for name, value in config.items() if name != "bits"}
    run = Federated(tmp_path, Settings("plain", nodes=3, **clear))
    start, plain = (flat(records.to_numpy(arrays)) for arrays in (run.initial, run.arrays))
    models = Federated(tmp_path, Settings(scheme, nodes=3, **config)).models()
    sealed = [flat(model.masters) for model in models]
    assert all(model.tobytes() == sealed[0].tobytes() for model in sealed)  # on every node
    assert np.linalg.norm(sealed[0] - plain) < tolerance * np.linalg.norm(plain - start)
    if "algorithm" in config:
        assert {model.steps for model in models} == {config["num_rounds"]}

"""Optimizers, q-FedAvg and FedSGD: encrypted runs end where Flower's and torch's do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flhe.mods import records
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import batch_gradient, new_model, shuffler
from flhe_app.tasks.split import node_data
from tests.apps.federation import Federated, flat

FEDAVG: dict[str, Any] = {"num_rounds": 2, "local_epochs": 1}
FEDSGD: dict[str, Any] = {"num_rounds": 2, "algorithm": "fedsgd", "client_optimizer": "adam"}
SGD = {**FEDSGD, "client_optimizer": "sgd", "client_lr": 0.1}
ADAM = {**FEDSGD, "client_lr": 0.003, "bits": 32}
RMSPROP = {**ADAM, "client_optimizer": "rmsprop", "client_lr": 0.001, "client_decay": 0.1}
OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}


def by_torch(settings: Settings) -> np.ndarray[Any, Any]:
    """FedSGD in clear: torch's own optimizer steps with the mean over all nodes' batches."""
    model = new_model(task_named(settings.task), settings.seed)
    momentum = {"momentum": settings.client_momentum} if settings.client_momentum else {}
    optimizer = OPTIMIZERS[settings.client_optimizer](
        model.parameters(), lr=settings.client_lr, **momentum
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda steps: 1 / (1 + settings.client_decay * steps)
    )
    for round_ in range(1, settings.num_rounds + 1):
        found = [
            batch_gradient(
                model,
                node_data(settings, node, settings.nodes).train,
                batch_size=settings.batch_size,
                shuffle=shuffler(settings.seed, node, round_),
            )
            for node in range(settings.nodes)
        ]
        total = sum(each.examples for each in found)
        for name, parameter in model.named_parameters():
            parts = [each.arrays[name] * (each.examples / total) for each in found]
            parameter.grad = torch.stack(parts).sum(0)
        optimizer.step()
        rates.step()
    return flat({name: value.numpy() for name, value in model.state_dict().items()})


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
    settings = Settings(scheme, nodes=3, **config)
    start = flat(new_model(task_named(settings.task), settings.seed).state_dict())
    if settings.gradients:
        plain = by_torch(settings)
    else:
        run = Federated(tmp_path, replace(settings, scheme="plain"))
        plain = flat(records.to_numpy(run.arrays))
    models = Federated(tmp_path, settings).models()
    sealed = [flat(model.masters) for model in models]
    assert all(model.tobytes() == sealed[0].tobytes() for model in sealed)  # on every node
    assert np.linalg.norm(sealed[0] - plain) < tolerance * np.linalg.norm(plain - start)
    if settings.gradients:
        assert {model.steps for model in models} == {config["num_rounds"]}

"""Ways to one guarantee: Opacus on pooled data, a federation of ours, and its codec in process."""

from __future__ import annotations

import logging
import warnings
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from flhe.coding.base import Plain
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.extras import Extras
from flhe.dpsgd import clipped_gradients, poisson_batch, reply
from flhe.mods import HEMod
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.flashe.scheme import Flashe
from flhe.strategies import dp_fedsgd, save_sealed
from flhe.testing import InProcessGrid
from flhe.training import accountant
from flhe.training.optimizer import Optimizer
from flhe_lab.bench.federation import layout_of
from flhe_lab.bench.host import quiet
from flhe_lab.privacy.tasks import DELTA, SITES, Rows, Task


def multipliers(task: Task, epsilon: float) -> tuple[float, float]:
    """Return the noise multipliers of Opacus' RDP accountant and of ours, for epsilon at DELTA."""
    from opacus.accountants.utils import get_noise_multiplier

    target = {"target_epsilon": epsilon, "target_delta": DELTA, "epsilon_tolerance": 1e-3}
    run = {"sample_rate": task.sampling, "steps": task.steps, "accountant": "rdp"}
    with warnings.catch_warnings(action="ignore"):  # of the best order being the last on its list
        theirs = get_noise_multiplier(**target, **run)
    ours = accountant.multiplier_for(epsilon, task.steps, sampling=task.sampling, delta=DELTA)
    return float(theirs), ours


def pooled(task: Task, rows: Rows, seed: int, multiplier: float) -> nn.Module:
    """Train with Opacus on the rows of all sites."""
    from opacus import GradSampleModule
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer
    from torch.utils.data import TensorDataset

    noise = {"noise_multiplier": multiplier, "max_grad_norm": task.max_norm}
    with warnings.catch_warnings(action="ignore"):  # torch's, of Opacus' hooks
        model: nn.Module = GradSampleModule(task.model(seed))
        sgd = torch.optim.SGD(model.parameters(), lr=task.lr)
        optimizer = DPOptimizer(sgd, expected_batch_size=task.divisor, **noise)
        loader = DPDataLoader(TensorDataset(*rows), sample_rate=task.sampling)
        torch.seed()  # or every new process would draw the same batches and noise
        for inputs, labels in islice(chain.from_iterable(repeat(loader)), task.steps):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
    return model


def _gradients(task: Task, model: nn.Module, rows: Rows, site: int) -> dict[str, Tensor]:
    """What the app of a site, with its share of the rows, replies with in one step."""
    inputs, labels = (each[site::SITES] for each in rows)
    at = poisson_batch(len(labels), task.sampling)
    return clipped_gradients(model, cross_entropy, inputs[at], labels[at], max_norm=task.max_norm)


def federated(task: Task, rows: Rows, seed: int, multiplier: float) -> nn.Module:
    """Train with `dp_fedsgd` over FLASHE, where every sum needs all sites."""
    app, model = ClientApp(mods=[HEMod()]), task.model(seed)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        sums = _gradients(task, model, rows, int(context.node_config["partition-id"]))
        return reply(message, sums, max_norm=task.max_norm, sampling=task.sampling)

    given: dict[str, Any] = {"noise_multiplier": multiplier, "max_grad_norm": task.max_norm}
    given |= {"sampling": task.sampling, "expected_batch": task.divisor, "min_replies": SITES}
    strategy = dp_fedsgd(Flashe(), **given, optimizer=Optimizer("sgd", lr=task.lr))
    with TemporaryDirectory() as folder, quiet("flwr", "flhe", level=logging.ERROR):
        sealed = Path(folder, "model.flhe")
        with InProcessGrid(app, SITES, homes=Path(folder)) as grid:
            save_sealed(strategy.start(grid, ArrayRecord(model.state_dict()), task.steps), sealed)
        masters = open_checkpoint(sealed, Path(folder, "node-0")).masters
    model.load_state_dict({name: torch.tensor(array) for name, array in masters.items()})
    return model


def in_process(task: Task, rows: Rows, seed: int, multiplier: float, honest: int) -> nn.Module:
    """Train by the codec of `dp_fedsgd` alone, where the noise of `honest` sites is enough."""
    given: dict[str, Any] = {"sampling": task.sampling, "divisor": task.divisor, "bits": 28}
    noise = DiscreteGaussian(task.max_norm, multiplier, "record", **given).counting_on(honest)
    model, extras = task.model(seed), Extras().encode(1, {}, [])
    weights = parameters_to_vector(model.parameters()).detach()
    state = noise.init(layout_of(len(weights)))
    for _ in range(task.steps):
        sums = [_gradients(task, model, rows, site).values() for site in range(SITES)]
        plain = (Plain(parameters_to_vector(each).numpy(), extras) for each in sums)
        sent = [noise.encode(each, state)[0] for each in plain]
        total = [np.sum(lanes, axis=0) for lanes in zip(*(part[:2] for part in sent), strict=True)]
        opened, _ = noise.decode(Plain(*total), range(SITES), state)
        weights -= task.lr * torch.from_numpy(opened.values)
        vector_to_parameters(weights, model.parameters())
    return model

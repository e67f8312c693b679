"""Ways to one guarantee: Opacus on pooled data, a federation of ours, and its codec in process.

The data sets are two that scikit-learn ships, with a network for each, and the settings of DP-SGD. Of
four learning rates, each is Opacus' best, on splits that are not measured. All ways share them.
"""

from __future__ import annotations

import logging
import warnings
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flhe.dpsgd import clipped_gradients, poisson_batch, reply
from flhe.mods import HEMod
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.flashe.scheme import Flashe
from flhe.strategies import dp_fedsgd, save_sealed
from flhe.testing import InProcessGrid
from flhe.training import accountant
from flhe.training.optimizer import Optimizer
from flhe_lab.audit.shadows import clipped, opened
from flhe_lab.bench.host import quiet

SITES = 20
DELTA = 1e-5
Rows = tuple[Tensor, Tensor]  # Inputs, shape (rows, features), and labels, shape (rows,)


class Task(NamedTuple):
    """A data set as in `sklearn.datasets.load_...`, a network's widths, and DP-SGD's settings."""

    name: str
    widths: tuple[int, int, int]
    lr: float
    divisor: int  # Expected batch of all sites, rounded down as by Opacus
    steps: int = 100
    sampling: float = 0.1  # Probability with which a record is in a step's batch
    max_norm: float = 1.0  # Largest L2 norm of one record's gradient

    def data(self, seed: int) -> tuple[Rows, Rows]:
        """Return rows to train on and a fifth to test on; means of the whole set count as public."""
        from sklearn import datasets, model_selection

        rows, labels = getattr(datasets, f"load_{self.name}")(return_X_y=True)
        rows = torch.tensor((rows - rows.mean(0)) / (rows.std(0) + 1e-6), dtype=torch.float32)
        split = {"test_size": 0.2, "stratify": labels, "random_state": seed}
        parts = model_selection.train_test_split(rows, torch.tensor(labels), **split)
        return (parts[0], parts[2]), (parts[1], parts[3])

    def model(self, seed: int) -> nn.Module:
        """Return a fresh network; equal seeds give equal weights."""
        first, hidden, last = self.widths
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last))


TASKS = Task("digits", (64, 32, 10), 0.5, 143), Task("breast_cancer", (30, 16, 2), 0.25, 45)


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


def federated(task: Task, rows: Rows, seed: int, multiplier: float) -> nn.Module:
    """Train with `dp_fedsgd` over FLASHE, where every sum needs all sites."""
    app, model = ClientApp(mods=[HEMod()]), task.model(seed)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        share = [each[int(context.node_config["partition-id"]) :: SITES] for each in rows]
        at = poisson_batch(len(share[1]), task.sampling)
        x, y = (each[at] for each in share)
        sums = clipped_gradients(model, cross_entropy, x, y, max_norm=task.max_norm)
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
    model, inputs, labels = task.model(seed), rows[0].double().numpy(), rows[1].numpy()
    inputs = np.column_stack([inputs, np.ones(len(inputs))])
    sites = [(inputs[i::SITES], labels[i::SITES]) for i in range(SITES)]
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    first, second = (
        torch.column_stack([layer.weight, layer.bias]).detach().double().numpy() for layer in layers
    )
    for _ in range(task.steps):
        at = [poisson_batch(len(y), task.sampling) for _, y in sites]
        batches = [(x[i], y[i]) for (x, y), i in zip(sites, at, strict=True)]
        sums = [clipped(first, second, x, y, task.max_norm) for x, y in batches]
        step = task.lr * opened(sums, multiplier, task.divisor, honest)
        first = first - step[: first.size].reshape(first.shape)
        second = second - step[first.size :].reshape(second.shape)
    with torch.no_grad():
        for layer, weights in zip(layers, (first, second), strict=True):
            layer.weight.copy_(torch.from_numpy(weights[:, :-1]))
            layer.bias.copy_(torch.from_numpy(weights[:, -1]))
    return model

"""Examples, and ordinary supervised training of a model on them.

A client's batches depend on (seed, partition, round) only: encrypted and plain runs see the same.
Loss is cross-entropy and accuracy the share of right first guesses, both over all labels; text has
one at every position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from flhe_app.tasks.workloads import Workload

MOMENTUM = partial(torch.optim.SGD, momentum=0.9)
"""Optimizer of one round, without state from others."""


class Examples(NamedTuple):
    """Inputs of a model, and the labels.

    Images float32 (count, channels, height, width), labels int64 (count,); or text: `images` are codes
    of characters, int64 (count, length), labels int64 (count, length). A model's logits are float32
    (count, classes) or (count, classes, length).
    """

    images: Tensor
    labels: Tensor

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all of them in order, `size` at a time."""
        halves = (part.split(size) for part in self)  # type: ignore[no-untyped-call]
        return zip(*halves, strict=True)

    def take(self, indices: NDArray[np.int64]) -> Examples:
        """Select the examples at `indices`, in that order."""
        chosen = torch.from_numpy(indices)
        return Examples(self.images[chosen], self.labels[chosen])


class Data(NamedTuple):
    """A data set: training examples to split over nodes, and the common test set."""

    train: Examples
    test: Examples


class Score(NamedTuple):
    """Mean loss and accuracy over some examples."""

    loss: float
    accuracy: float


def new_model(task: Workload, seed: int) -> nn.Module:
    """Return the task's model with weights that depend on `seed` only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.build()


def shuffler(seed: int, partition: int, server_round: int) -> torch.Generator:
    """Return the generator of one client's batches in one round."""
    state = np.random.SeedSequence([seed, partition, server_round]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> 1))


@torch.no_grad()
def add_pull(model: nn.Module, received: list[Tensor], mu: float) -> None:
    """Add mu * (w - w_t) to every gradient: FedProx's pull to the parameters w_t in `received`.

    That is the gradient of mu / 2 * ||w - w_t||**2, so the reported loss stays the task's own. A
    parameter without a gradient is skipped: it has not moved.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Alg. 2.
    """
    for parameter, anchor in zip(model.parameters(), received, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter - anchor, alpha=mu)


def _backward(model: nn.Module, examples: Examples, batch: Tensor) -> tuple[float, int, int]:
    """Leave the gradients of a batch's mean loss; return the loss, right guesses and labels."""
    labels = examples.labels[batch]
    model.zero_grad()
    logits = model(examples.images[batch])
    loss = functional.cross_entropy(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), int((logits.argmax(1) == labels).sum()), labels.numel()


def train(
    model: nn.Module,
    examples: Examples,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    shuffle: torch.Generator,
    proximal_mu: float = 0.0,
    stepper: Callable[..., torch.optim.Optimizer] = MOMENTUM,
    batches: int = 0,
) -> Score:
    """Train `model` in place; return the last epoch's running score.

    `shuffle` gives the order of examples; an epoch takes the first `batches`, 0 for all.
    `proximal_mu` is the weight of FedProx's pull, which the score leaves out.
    """
    received = [p.detach().clone() for p in model.parameters()] if proximal_mu else []
    steps = stepper(model.parameters(), lr=learning_rate)
    count = len(examples.labels)
    score = Score(0.0, 0.0)
    model.train()
    for _ in range(epochs):
        loss_sum, correct, seen = 0.0, 0, 0
        order = torch.randperm(count, generator=shuffle).split(batch_size)  # type: ignore[no-untyped-call]
        for batch in order[: batches or None]:
            loss, right, labels = _backward(model, examples, batch)
            if proximal_mu:
                add_pull(model, received, proximal_mu)
            steps.step()
            loss_sum += loss * labels
            correct += right
            seen += labels
        score = Score(loss_sum / seen, correct / seen)
    return score


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, *, batch_size: int = 512) -> Score:
    """Score `model` on `examples`."""
    model.eval()
    loss_sum, correct = 0.0, 0
    for images, labels in examples.batches(batch_size):
        logits = model(images)
        loss_sum += functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
    return Score(loss_sum / examples.labels.numel(), correct / examples.labels.numel())


class BatchGradient(NamedTuple):
    """Mean gradient of one batch, in place of a model's arrays."""

    arrays: dict[str, Tensor]
    """As the model's state: gradients for parameters, zeros for parameters without one and for
    other floats (the loss does not depend on a running mean), other buffers as after the pass."""
    score: Score  # Mean loss and accuracy over the batch, before any step
    examples: int  # Examples in the batch: its weight


def batch_gradient(
    model: nn.Module, examples: Examples, *, batch_size: int, shuffle: torch.Generator
) -> BatchGradient:
    """Return the gradient of the mean loss over `batch_size` random examples, at most all."""
    order = torch.randperm(len(examples.labels), generator=shuffle)
    batch = order[:batch_size].to(examples.labels.device)
    model.train()
    loss, right, labels = _backward(model, examples, batch)
    arrays = {
        name: torch.zeros_like(value) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            arrays[name] = parameter.grad
    return BatchGradient(arrays, Score(loss, right / labels), len(batch))

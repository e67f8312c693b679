"""What a task is, and ordinary supervised training of its model.

Nothing here draws from torch's global generator once a model exists: a client's batches depend on
(seed, partition, round) alone, so that an encrypted run and a plain one see the same batches.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from flhe.apps.tasks.proximal import add_pull, anchors


class Examples(NamedTuple):
    """Images, float32 (count, channels, height, width), and their labels, int64 (count,)."""

    images: Tensor
    labels: Tensor

    def take(self, indices: NDArray[np.int64]) -> Examples:
        """Select the examples at `indices`, in that order."""
        chosen = torch.from_numpy(indices)
        return Examples(self.images[chosen], self.labels[chosen])


class Data(NamedTuple):
    """A data set: what is split over nodes to train, and the common test set."""

    train: Examples
    test: Examples


class Score(NamedTuple):
    """Mean loss and accuracy over some examples."""

    loss: float
    accuracy: float


class Task(Protocol):
    """A data set and the model that learns it."""

    @property
    def name(self) -> str:
        """The task's name in the run config."""

    @property
    def train_size(self) -> int:
        """Examples in the training set, all nodes together."""

    def build(self) -> nn.Module:
        """Make the model; its weights come from torch's global generator."""

    def load(self, data_dir: str, *, download: bool) -> Data:
        """Read the data set; an error says where to put it."""


def new_model(task: Task, seed: int) -> nn.Module:
    """Make the task's model with weights that depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.build()


def shuffler(seed: int, partition: int, server_round: int) -> torch.Generator:
    """Return the generator of one client's batches in one round."""
    state = np.random.SeedSequence([seed, partition, server_round]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> 1))


def train(
    model: nn.Module,
    examples: Examples,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    shuffle: torch.Generator,
    proximal_mu: float = 0.0,
) -> Score:
    """Train `model` in place by SGD with momentum 0.9. Returns the last epoch's running score.

    `proximal_mu` > 0 pulls it back to where it started, as FedProx does; the score is without that.
    """
    received = anchors(model) if proximal_mu else []
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    count = len(examples.labels)
    model.train()
    for _ in range(epochs):
        loss_sum, correct = 0.0, 0
        for batch in torch.randperm(count, generator=shuffle).split(batch_size):  # type: ignore[no-untyped-call]
            labels = examples.labels[batch]
            optimizer.zero_grad()
            logits = model(examples.images[batch])
            loss = functional.cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if proximal_mu:
                add_pull(model, received, proximal_mu)
            optimizer.step()
            loss_sum += loss.item() * len(labels)
            correct += int((logits.argmax(1) == labels).sum())
    return Score(loss_sum / count, correct / count)


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, *, batch_size: int = 512) -> Score:
    """Score `model` on `examples`."""
    model.eval()
    loss_sum, correct = 0.0, 0
    batches = zip(
        examples.images.split(batch_size),  # type: ignore[no-untyped-call]
        examples.labels.split(batch_size),  # type: ignore[no-untyped-call]
        strict=True,
    )
    for images, labels in batches:
        logits = model(images)
        loss_sum += functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
    return Score(loss_sum / len(examples.labels), correct / len(examples.labels))

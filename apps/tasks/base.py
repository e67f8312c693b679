"""What a task is, and ordinary supervised training of its model.

Nothing here draws from torch's global generator once a model exists: a client's batches depend on
(seed, partition, round) alone, so that an encrypted run and a plain one see the same batches.

An example is an image with one label, or a window of text with a label at every position: the character
that follows there. Loss is cross-entropy and accuracy the share of right first guesses, both over all
labels, so over all positions of all windows. Weights count examples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from flhe_app.tasks.proximal import add_pull, anchors

STEPPERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}
"""What a client steps with in one round, without a memory of others; two of them as they come."""


class Examples(NamedTuple):
    """What a model takes, and the labels.

    Images float32 (count, channels, height, width), labels int64 (count,); or text: `images` are codes
    of characters, int64 (count, length), labels int64 (count, length). A model's logits are float32
    (count, classes) or (count, classes, length).
    """

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

    @property
    def classes(self) -> int:
        """What the model tells apart: guessing has a loss of ln(classes)."""

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
    optimizer: str = "sgd",
    batches: int = 0,
) -> Score:
    """Train `model` in place. Returns the last epoch's running score.

    Parameters
    ----------
    model, examples
        What learns, and from what.
    epochs, learning_rate, batch_size, shuffle
        Passes over the examples, the optimizer's step, examples in a batch, the order of examples.
    proximal_mu : float
        More than 0 pulls the model back to where it started, as FedProx does; the score is
        without that.
    optimizer : Stepper
        What steps.
    batches : int
        Batches of an epoch, the first of its order; 0 for all.
    """
    received = anchors(model) if proximal_mu else []
    steps = STEPPERS[optimizer](model.parameters(), lr=learning_rate)
    count = len(examples.labels)
    score = Score(0.0, 0.0)
    model.train()
    for _ in range(epochs):
        loss_sum, correct, seen = 0.0, 0, 0
        order = torch.randperm(count, generator=shuffle).split(batch_size)  # type: ignore[no-untyped-call]
        for batch in order[: batches or None]:
            labels = examples.labels[batch]
            steps.zero_grad()
            logits = model(examples.images[batch])
            loss = functional.cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if proximal_mu:
                add_pull(model, received, proximal_mu)
            steps.step()
            loss_sum += loss.item() * labels.numel()
            correct += int((logits.argmax(1) == labels).sum())
            seen += labels.numel()
        score = Score(loss_sum / seen, correct / seen)
    return score


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
    return Score(loss_sum / examples.labels.numel(), correct / examples.labels.numel())

"""The gradient of one batch: what a node sends under FedSGD."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from flhe_app.tasks.base import Examples, Score


class BatchGradient(NamedTuple):
    """Mean gradient of one batch, in the place of a model's arrays."""

    arrays: dict[str, Tensor]
    """As the model's state: gradients for parameters, zeros for parameters without one and for
    other floats (a running mean is no function of the loss), other buffers as the pass has
    left them."""
    score: Score  # Mean loss and accuracy over the batch, before any step
    examples: int  # Examples in the batch: its weight


def batch_gradient(
    model: nn.Module, examples: Examples, *, batch_size: int, shuffle: torch.Generator
) -> BatchGradient:
    """Gradient of the mean loss over `batch_size` random examples, or all where there are fewer."""
    order = torch.randperm(len(examples.labels), generator=shuffle)
    batch = order[:batch_size].to(examples.labels.device)
    labels = examples.labels[batch]
    model.train()
    model.zero_grad()
    logits = model(examples.images[batch])
    loss = functional.cross_entropy(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    arrays = {}
    for name, value in model.state_dict().items():
        gradient = parameters[name].grad if name in parameters else None
        if gradient is not None:
            arrays[name] = gradient
        else:
            arrays[name] = torch.zeros_like(value) if value.is_floating_point() else value
    correct = int((logits.argmax(1) == labels).sum())
    return BatchGradient(arrays, Score(loss.item(), correct / labels.numel()), len(labels))

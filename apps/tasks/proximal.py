"""FedProx: training that is pulled back to the model it started from.

    minimise  F_k(w) + mu / 2 * ||w - w_t||**2

The gradient of the second term is mu * (w - w_t): it is added to that of the loss before each step, so
the loss that is reported stays the task's own. All of it happens on the client, under any scheme.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Alg. 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def anchors(model: nn.Module) -> list[Tensor]:
    """Copies of the model's parameters, in order: w_t, to be taken before training."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def add_pull(model: nn.Module, received: list[Tensor], mu: float) -> None:
    """Add mu * (w - w_t) to every gradient, in place.

    A parameter without a gradient is left alone: nothing has moved it from `received`.

    Parameters
    ----------
    model : nn.Module
        After `backward`.
    received : list[Tensor]
        What `anchors` gave.
    mu : float
        Weight of the proximal term.
    """
    for parameter, anchor in zip(model.parameters(), received, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter - anchor, alpha=mu)

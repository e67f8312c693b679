"""FedProx: the gradient is that of the loss with its proximal term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flhe_app.tasks import task_named
from flhe_app.tasks.base import Examples, add_pull, anchors, new_model

EXAMPLES = Examples(
    torch.linspace(-1, 1, 64 * 64).sin().reshape(64, 1, 8, 8), torch.arange(64).remainder(10)
)


def moved() -> tuple[nn.Module, list[Tensor]]:
    """A model away from where it was received."""
    model = new_model(task_named("digits"), 0)
    received = anchors(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.cos(torch.arange(parameter.numel())).view_as(parameter))
    return model, received


def loss_of(model: nn.Module) -> Tensor:
    return functional.cross_entropy(model(EXAMPLES.images), EXAMPLES.labels)


@pytest.mark.parametrize("mu", [0.01, 1.0, 10.0])
def test_gradient_is_that_of_the_whole_objective(mu: float) -> None:
    model, received = moved()
    pairs = list(zip(model.parameters(), received, strict=True))
    term = torch.stack([((w - anchor) ** 2).sum() for w, anchor in pairs]).sum()
    whole = torch.autograd.grad(loss_of(model) + mu / 2 * term, list(model.parameters()))
    loss_of(model).backward()
    add_pull(model, received, mu)
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


def test_what_has_no_gradient_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    model(torch.ones(1, 2)).sum().backward()
    add_pull(model, anchors(model), 1.0)
    assert model.bias.grad is None

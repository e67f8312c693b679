"""FedProx: the gradient is that of the loss with its proximal term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flhe_app.tasks.base import Examples, new_model, shuffler, train
from flhe_app.tasks.digits import DIGITS
from flhe_app.tasks.proximal import add_pull, anchors

EXAMPLES = Examples(
    torch.linspace(-1, 1, 64 * 64).sin().reshape(64, 1, 8, 8), torch.arange(64).remainder(10)
)


def moved() -> tuple[nn.Module, list[Tensor]]:
    """A model away from where it was received."""
    model = new_model(DIGITS, 0)
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


def test_no_pull_where_training_starts() -> None:
    model = new_model(DIGITS, 0)
    loss_of(model).backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    add_pull(model, anchors(model), 1.0)
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_has_no_gradient_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    model(torch.ones(1, 2)).sum().backward()
    add_pull(model, anchors(model), 1.0)
    assert model.bias.grad is None


def distance(mu: float) -> float:
    """How far training goes, for the same batches."""
    model = new_model(DIGITS, 0)
    received = anchors(model)
    train(
        model,
        EXAMPLES,
        epochs=3,
        learning_rate=0.05,
        batch_size=16,
        shuffle=shuffler(0, 0, 1),
        proximal_mu=mu,
    )
    parts = zip(model.parameters(), received, strict=True)
    return sum(float(((w.detach() - anchor) ** 2).sum()) for w, anchor in parts)


def test_training_stays_closer_the_more_it_is_pulled() -> None:
    assert distance(0.0) > distance(1.0) > distance(5.0) > 0

"""FedSGD: gradients out of batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from flhe_app.tasks.base import Examples, batch_gradient, shuffler


class Buffered(nn.Module):
    """A model with all that a state may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 3)
        self.tied = self.head
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of three classes."""
        out: torch.Tensor = self.head(self.norm(x))
        return out


def some(count: int) -> Examples:
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (count,), generator=draw)
    return Examples(torch.randn(count, 2, generator=draw), labels)


def test_every_array_of_the_state_has_its_place() -> None:
    torch.manual_seed(1)
    model = Buffered()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = batch_gradient(model, some(50), batch_size=8, shuffle=shuffler(0, 0, 1))
    assert found.examples == 8
    assert list(found.arrays) == list(before)
    for name, value in before.items():
        assert (found.arrays[name].shape, found.arrays[name].dtype) == (value.shape, value.dtype)
        if name != "norm.num_batches_tracked" and "running" not in name:
            assert torch.equal(model.state_dict()[name], value)  # nothing has stepped
    assert found.arrays["norm.num_batches_tracked"] == 1
    for name in ("norm.running_mean", "norm.running_var", "frozen", "unused"):
        assert not found.arrays[name].any()
    assert torch.equal(found.arrays["tied.weight"], found.arrays["head.weight"])
    for name in ("head.weight", "head.bias", "norm.weight"):
        assert found.arrays[name].any()


def test_it_is_the_mean_gradient_of_its_batch_and_of_no_other() -> None:
    examples = some(50)

    def found(partition: int, round_: int, size: int = 8) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3))
        shuffle = shuffler(3, partition, round_)
        return batch_gradient(model, examples, batch_size=size, shuffle=shuffle).arrays["0.weight"]

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3))
    order = torch.randperm(50, generator=shuffler(3, 0, 1))[:8]
    share = torch.softmax(model(examples.images[order]), 1).detach()
    share[torch.arange(8), examples.labels[order]] -= 1  # of cross entropy, by hand
    assert torch.allclose(found(0, 1), share.T @ examples.images[order] / 8, atol=1e-6)
    assert torch.equal(found(0, 1), found(0, 1))
    assert not torch.equal(found(0, 1), found(0, 2))
    assert not torch.equal(found(0, 1), found(1, 1))
    whole = batch_gradient(model, examples, batch_size=999, shuffle=shuffler(3, 0, 1))
    assert whole.examples == 50
    loss = functional.cross_entropy(model(examples.images), examples.labels)
    assert whole.score.loss == pytest.approx(loss.item(), rel=1e-5)
    correct = (model(examples.images).argmax(1) == examples.labels).sum() / 50
    assert whole.score.accuracy == pytest.approx(correct.item())

"""What an app of DP-SGD takes from `flhe.dpsgd`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flhe.dpsgd import Loss, clipped_gradients, poisson_batch
from flhe.errors import ConfigError
from tests.math.test_discrete_gaussian import seeded


def test_each_record_is_in_a_batch_with_its_probability_and_by_itself() -> None:
    rounds, count, rate = 400, 500, 0.2
    batches = np.zeros((rounds, count))
    for i in range(rounds):
        batch = poisson_batch(count, rate, seeded(i))
        assert (np.diff(batch) > 0).all()
        batches[i, batch] = 1
    spread = math.sqrt(rate * (1 - rate))
    assert abs(batches.mean() - rate) < 5 * spread / math.sqrt(rounds * count)
    assert np.abs(batches.mean(0) - rate).max() < 5.5 * spread / math.sqrt(rounds)
    # A batch of fixed size, or a shuffled epoch, would have no variance of sizes.
    assert batches.sum(1).var() == pytest.approx(count * rate * (1 - rate), rel=0.4)
    assert abs(np.corrcoef(batches[:, 0], batches[:, 1])[0, 1]) < 5 / math.sqrt(rounds)


def test_batches_at_the_ends() -> None:
    assert poisson_batch(7, 1.0).tolist() == list(range(7))
    assert poisson_batch(1000, 1e-12).size == 0
    assert poisson_batch(0, 0.5).size == 0
    assert poisson_batch(500, 0.5).tolist() != poisson_batch(500, 0.5).tolist()
    for wrong in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="sampling"):
            poisson_batch(3, wrong)


def sums_of(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    max_norm: float = 1.0,
    loss: Loss = functional.cross_entropy,
    at_a_time: int = 64,
) -> dict[str, torch.Tensor]:
    return clipped_gradients(model, loss, inputs, targets, max_norm=max_norm, at_a_time=at_a_time)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5)
    )


@pytest.mark.parametrize("at_a_time", [1, 4, 64])
def test_gradients_are_those_of_one_example_after_the_other(at_a_time: int) -> None:
    """By PyTorch's own backward pass, clipped by its own function."""
    model, norm = network(), 0.7
    inputs, targets = torch.randn(10, 1, 8, 8), torch.randint(0, 5, (10,))
    sums = sums_of(model, inputs, targets, norm, at_a_time=at_a_time)
    wanted = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    clipped = 0
    for one, target in zip(inputs, targets, strict=True):
        model.zero_grad()
        functional.cross_entropy(model(one[None]), target[None]).backward()  # type: ignore[no-untyped-call]
        clipped += bool(nn.utils.clip_grad_norm_(model.parameters(), norm) > norm)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            wanted[name] += parameter.grad
    assert clipped > 0
    assert list(sums) == list(model.state_dict())
    for name, total in wanted.items():
        torch.testing.assert_close(sums[name], total, rtol=1e-4, atol=1e-5)


class Shapes(nn.Module):
    """Parameters without dimensions and without values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.none = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.none, self.scale * inputs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_of_every_shape_and_precision_have_gradients(dtype: torch.dtype) -> None:
    model, inputs = Shapes().to(dtype), torch.tensor([[1.0, 2], [30, 0]], dtype=dtype)
    sums = sums_of(model, inputs, torch.zeros(2, dtype=dtype), 10.0, lambda out, _: out.sum())
    assert {(total.dtype, total.shape) for total in sums.values()} == {
        (value.dtype, value.shape) for value in model.state_dict().values()
    }
    assert sums["scale"].item() == 13


def tied() -> nn.Sequential:
    """A weight that two layers have, and a layer that is in two places."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    model[1].weight = model[0].weight
    return model.append(model[2])


def test_a_tied_weight_counts_under_each_of_its_names() -> None:
    """All names are sent, so the noise must be for the norm of all."""
    model, inputs, targets = tied(), torch.randn(1, 3), torch.zeros(1, 3)
    functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    wanted = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    norm = math.sqrt(sum(float(g.square().sum()) for g in wanted.values() if g is not None))
    sums = sums_of(model, inputs, targets, norm / 2, functional.mse_loss)
    for name, gradient in wanted.items():
        assert gradient is not None
        torch.testing.assert_close(sums[name], gradient / 2)
    model.load_state_dict(sums)


def test_no_example_changes_a_sum_by_more_than_the_norm() -> None:
    model = network()
    inputs, targets = 50 * torch.randn(6, 1, 8, 8), torch.randint(0, 5, (6,))
    whole, less = (sums_of(model, inputs[:n], targets[:n], 0.3) for n in (6, 5))
    squares = sum(float((whole[n] - less[n]).square().sum()) for n in whole)
    assert math.sqrt(squares) == pytest.approx(0.3, rel=1e-4)


def test_an_empty_batch_is_zeros_and_frozen_weights_too() -> None:
    model = network()
    model[0].requires_grad_(False)
    for count in (0, 3):
        sums = sums_of(model, torch.randn(count, 1, 8, 8), torch.zeros(count).long())
        assert {n: tuple(t.shape) for n, t in sums.items()} == {
            n: tuple(t.shape) for n, t in model.state_dict().items()
        }
        assert not sums["0.weight"].any()
        assert bool(sums["4.weight"].any()) == bool(count)


def test_a_record_whose_gradient_is_not_finite_is_as_if_it_were_not_there() -> None:
    """NaN in the sum, or a refusal, would tell that it is."""
    model = network()
    inputs, targets = torch.randn(4, 1, 8, 8), torch.zeros(4).long()
    inputs[2] = math.inf
    rest = [0, 1, 3]
    whole, without = sums_of(model, inputs, targets), sums_of(model, inputs[rest], targets[rest])
    for name, total in without.items():
        torch.testing.assert_close(whole[name], total)


def counting() -> nn.Linear:
    model = nn.Linear(3, 2)
    model.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(3, 2).bfloat16(), "16 bits"),
        (nn.Linear(3, 2).requires_grad_(False), "requires a gradient"),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), "group norm"),
        (counting(), "steps"),
    ],
    ids=["bfloat16", "frozen", "batch norm", "buffer"],
)
def test_models_without_a_gradient_that_noise_can_hide_are_refused(
    model: nn.Module, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        sums_of(model, torch.zeros(2, 3), torch.zeros(2).long())


@pytest.mark.parametrize("norm", [0.0, math.inf, math.nan])
def test_other_norms_are_refused(norm: float) -> None:
    with pytest.raises(ConfigError, match="max_norm"):
        sums_of(nn.Linear(3, 2), torch.zeros(2, 3), torch.zeros(2).long(), norm)


@pytest.mark.parametrize(("inputs", "targets", "at_a_time"), [(128, 64, 64), (6, 4, 2), (6, 6, -1)])
def test_no_example_is_left_out_silently(inputs: int, targets: int, at_a_time: int) -> None:
    data = torch.zeros(inputs, 3), torch.zeros(targets).long()
    with pytest.raises(ConfigError, match="clipped_gradients") as told:
        sums_of(nn.Linear(3, 2), *data, at_a_time=at_a_time)
    assert str(inputs) not in str(told.value)  # the size of a batch is secret


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("size", [0, 3])
def test_layers_without_gradients_of_one_record_are_refused_on_any_batch(
    kind: type[nn.Module], size: int
) -> None:
    """If only a batch with records failed, a failure would tell that there was one."""
    model = nn.ModuleDict({"inner": kind(2, 2)})
    with pytest.raises(ConfigError, match="use an LSTM"):
        sums_of(model, torch.zeros(size, 2), torch.zeros(size, 2))

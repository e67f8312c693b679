"""What an app of DP-SGD takes from `flhe.dpsgd`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flhe.dpsgd import clipped_gradients, poisson_batch
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
    sums = clipped_gradients(
        model, functional.cross_entropy, inputs, targets, max_norm=norm, at_a_time=at_a_time
    )
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
    sums = clipped_gradients(
        model, lambda out, _: out.sum(), inputs, torch.zeros(2, dtype=dtype), max_norm=10.0
    )
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
    sums = clipped_gradients(model, functional.mse_loss, inputs, targets, max_norm=norm / 2)
    for name, gradient in wanted.items():
        assert gradient is not None
        torch.testing.assert_close(sums[name], gradient / 2)
    model.load_state_dict(sums)


def test_models_without_a_gradient_that_noise_can_hide_are_refused() -> None:
    data, model = (torch.zeros(2, 3), torch.zeros(2).long()), nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="16 bits"):
        clipped_gradients(model.bfloat16(), functional.cross_entropy, *data, max_norm=1.0)
    with pytest.raises(ConfigError, match="requires a gradient"):
        clipped_gradients(
            model.requires_grad_(False), functional.cross_entropy, *data, max_norm=1.0
        )


@pytest.mark.parametrize(("inputs", "targets", "at_a_time"), [(128, 64, 64), (6, 4, 2), (6, 6, -1)])
def test_no_example_is_left_out_silently(inputs: int, targets: int, at_a_time: int) -> None:
    data = torch.zeros(inputs, 3), torch.zeros(targets).long()
    with pytest.raises(ConfigError, match="clipped_gradients") as told:
        clipped_gradients(
            nn.Linear(3, 2), functional.cross_entropy, *data, max_norm=1.0, at_a_time=at_a_time
        )
    assert str(inputs) not in str(told.value)  # the size of a batch is secret


def test_no_example_changes_a_sum_by_more_than_the_norm() -> None:
    model = network()
    inputs, targets = 50 * torch.randn(6, 1, 8, 8), torch.randint(0, 5, (6,))
    whole, less = (
        clipped_gradients(model, functional.cross_entropy, inputs[:n], targets[:n], max_norm=0.3)
        for n in (6, 5)
    )
    squares = sum(float((whole[n] - less[n]).square().sum()) for n in whole)
    assert math.sqrt(squares) == pytest.approx(0.3, rel=1e-4)


def test_an_empty_batch_is_zeros_and_frozen_weights_too() -> None:
    model = network()
    model[0].requires_grad_(False)
    for count in (0, 3):
        sums = clipped_gradients(
            model,
            functional.cross_entropy,
            torch.randn(count, 1, 8, 8),
            torch.zeros(count, dtype=torch.int64),
            max_norm=1.0,
        )
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
    whole, without = (
        clipped_gradients(model, functional.cross_entropy, x, y, max_norm=1.0)
        for x, y in ((inputs, targets), (inputs[rest], targets[rest]))
    )
    for name, total in without.items():
        torch.testing.assert_close(whole[name], total)


def test_layers_that_mix_examples_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="group norm"):
        clipped_gradients(
            model, functional.cross_entropy, torch.zeros(2, 3), torch.zeros(2).long(), max_norm=1.0
        )


def test_other_norms_and_buffers_are_refused() -> None:
    model = nn.Linear(3, 2)
    data = torch.zeros(2, 3), torch.zeros(2).long()
    for wrong in (0.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="max_norm"):
            clipped_gradients(model, functional.cross_entropy, *data, max_norm=wrong)
    model.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    with pytest.raises(ConfigError, match="steps"):
        clipped_gradients(model, functional.cross_entropy, *data, max_norm=1.0)


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("size", [0, 3])
def test_layers_without_gradients_of_one_record_are_refused_on_any_batch(
    kind: type[nn.Module], size: int
) -> None:
    """If only a batch with records failed, a failure would tell that there was one."""
    model = nn.ModuleDict({"inner": kind(2, 2)})
    with pytest.raises(ConfigError, match="use an LSTM"):
        clipped_gradients(
            model, functional.mse_loss, torch.zeros(size, 2), torch.zeros(size, 2), max_norm=1.0
        )

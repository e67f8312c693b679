"""Maps by inputs: against double backward passes, by random probes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flhe.coding.sensitivity import sensitivity
from flhe.errors import ConfigError
from flhe_lab.audit.lenet import lenet
from tests.coding.test_sensitivity import (
    INDICES,
    ROWS,
    Attention,
    Loss,
    assert_close,
    by_double_backward,
    flat,
    mlp,
    random,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_inputs(model: nn.Module, batches: Any, **how: Any) -> dict[str, Tensor]:
    return sensitivity(model, functional.cross_entropy, batches, of="inputs", **how)


# --- every component ---


@pytest.mark.parametrize("chunk", [None, 1, 2, 7])
@pytest.mark.parametrize("loss", [functional.cross_entropy, functional.mse_loss])
def test_every_component(loss: Loss, chunk: int | None) -> None:
    model, inputs = mlp(), random(3, 7, 5)
    batches = [(inputs[:3], ROWS[:3]), (inputs[3:], ROWS[3:])]
    found = sensitivity(model, loss, batches, of="inputs", probes=None, chunk=chunk)
    assert {n: p.shape for n, p in found.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    assert_close(flat(found), by_double_backward(model, loss, inputs, ROWS, of="inputs"))


def test_a_linear_model_by_hand() -> None:
    """Half of e^2, e = w x + b - y: d/dx_j (dl/dw_i) = w_j x_i + [i = j] e, d/dx (dl/db) = w."""
    model, inputs, targets = nn.Linear(3, 1), random(5, 11, 3), random(6, 11, 1)
    found = sensitivity(
        model,
        lambda output, target: functional.mse_loss(output, target) / 2,
        [(inputs, targets)],
        of="inputs",
        probes=None,
    )
    w, errors = model.weight.detach()[0], (model(inputs) - targets).detach()
    jacobians = inputs[:, :, None] * w + torch.eye(3) * errors[:, :, None]
    assert_close(found["weight"][0], jacobians.norm(dim=2).mean(0))
    assert_close(found["bias"], w.norm()[None])


def test_lenet_by_every_component() -> None:
    model, images, labels = lenet(1), random(2, 1, 3, 32, 32), torch.tensor([4])
    found = flat(by_inputs(model, [(images, labels)], probes=None))
    expected = by_double_backward(
        model, functional.cross_entropy, images, labels, every=397, of="inputs"
    )
    assert_close(found[::397], expected)


def test_it_is_another_map_than_that_of_labels() -> None:
    batches = [(random(3, 7, 5), INDICES)]
    of_labels = sensitivity(mlp(), functional.cross_entropy, batches)
    explicit = sensitivity(mlp(), functional.cross_entropy, batches, of="labels", probes=1)
    assert torch.equal(flat(of_labels), flat(explicit))
    found = flat(by_inputs(mlp(), batches, probes=None))
    assert (found - flat(of_labels)).abs().max() > 0.1 * found.max()


class Mixed(nn.Module):
    """Two inputs of different shapes, one of them a mapping's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, one: Tensor, others: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(torch.cat([one, others["b"] * others["a"][:, None]], 1)).tanh()
        return out


@pytest.mark.parametrize("chunk", [None, 1])
def test_several_inputs_are_one_long_one(chunk: int | None) -> None:
    """The norm goes over all of them."""
    model = Mixed()
    one, a, b = random(1, 7, 3), random(2, 7), random(4, 7, 2)

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = model(x[:, :3], {"a": x[:, 3], "b": x[:, 4:]})
            return out

    joined = torch.cat([one, a[:, None], b], 1)
    found = by_inputs(model, [((one, {"a": a, "b": b}), INDICES)], probes=None, chunk=chunk)
    expected = by_double_backward(Joined(), functional.cross_entropy, joined, INDICES, of="inputs")
    assert_close(flat(found), expected)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.layer(x)
        out: Tensor = functional.scaled_dot_product_attention(*[mixed] * 3).mean(1)
        return out


@pytest.mark.parametrize("chunk", [None, 1])
def test_attention_is_differentiated_twice(chunk: int | None) -> None:
    model, inputs = Attending(), random(3, 3, 2, 4)
    found = flat(by_inputs(model, [(inputs, INDICES[:3])], probes=None, chunk=chunk))

    class ByHand(Attending):
        def forward(self, x: Tensor) -> Tensor:
            mixed = self.layer(x)
            out: Tensor = ((mixed @ mixed.mT / 2).softmax(-1) @ mixed).mean(1)
            return out

    plain = ByHand()
    plain.load_state_dict(model.state_dict())
    assert_close(
        found, by_double_backward(plain, functional.cross_entropy, inputs, INDICES[:3], of="inputs")
    )


# --- random probes ---


def relative_errors(probes: int, count: int, chunk: int | None = None) -> Tensor:
    """Of all parameters, from `count` copies of one sample, so that norms are alike."""
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4)).double()
    nn.init.normal_(model[0].weight, std=40**-0.5, generator=generator(1))
    nn.init.normal_(model[2].weight, std=30**-0.5, generator=generator(2))
    x = random(3, 1, 40).double()
    exact = flat(by_inputs(model, [(x, INDICES[:1])], probes=None))
    batches = [(x.expand(count, 40), INDICES[:1].expand(count))]
    found = flat(by_inputs(model, batches, probes=probes, random=generator(5), chunk=chunk))
    return found / exact - 1


@pytest.mark.parametrize(
    ("probes", "count", "chunk"), [(8, 1, None), (8, 1, 1), (8, 16, 24), (32, 1, 5)]
)
def test_the_error_of_random_probes(probes: int, count: int, chunk: int | None) -> None:
    """It is as large as is said: 1 / sqrt(2 P K), and on the average 1 / (4 P) too small."""
    errors = relative_errors(probes, count, chunk)
    said = (2 * probes * count) ** -0.5
    assert 0.4 * said < errors.std() < 1.4 * said
    assert abs(errors.mean() + 1 / (4 * probes)) < said


def test_probes_are_drawn_for_each_sample() -> None:
    """Were they shared, copies of one sample would err as one does."""
    assert relative_errors(8, 16).std() < 0.5 * relative_errors(8, 1).std()


@pytest.mark.parametrize("chunk", [None, 1])
def test_as_many_probes_as_components_are_exact(chunk: int | None) -> None:
    batches = [(random(3, 7, 5), INDICES)]
    exact = flat(by_inputs(mlp(), batches, probes=None))
    assert_close(flat(by_inputs(mlp(), batches, probes=5, chunk=chunk)), exact)
    assert_close(flat(by_inputs(mlp(), batches, probes=99, chunk=chunk)), exact)
    fewer = flat(by_inputs(mlp(), batches, probes=4, chunk=chunk))
    assert (fewer - exact).abs().max() > 1e-3 * exact.max()


def test_generators() -> None:
    """The same gives the same map; without one, no two maps are the same."""
    batches = [(random(3, 7, 5), INDICES)]
    maps = [flat(by_inputs(mlp(), batches, probes=2, random=generator(s))) for s in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], maps[2])
    torch.manual_seed(0)
    one = flat(by_inputs(mlp(), batches, probes=2))
    torch.manual_seed(0)
    assert not torch.equal(one, flat(by_inputs(mlp(), batches, probes=2)))


# --- refusals ---

TOKENS = {"tokens": torch.tensor([[0, 1, 5], [2, 2, 3]]), "scale": torch.tensor([1.0, 0.5])}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"of": "weights"}, 'must be "labels" or "inputs"'),
        ({"probes": 0}, "probes=0, must be at least 1, or None"),
        ({"batches": [(torch.ones(7, 5, dtype=torch.int64), INDICES)]}, 'int64.*use of="labels"'),
        ({"batches": [(torch.ones(7, 5, dtype=torch.bool), INDICES)]}, 'bool.*use of="labels"'),
        ({"model": Attention(), "batches": [(TOKENS, INDICES[:2])]}, 'int64.*use of="labels"'),
        ({"loss": lambda o, y: o.detach().sum() + y.sum()}, "no gradient depends on the inputs"),
    ],
)
def test_refusals(change: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {
        "model": mlp(),
        "loss": functional.cross_entropy,
        "batches": [(random(3, 7, 5), INDICES)],
        "of": "inputs",
        **change,
    }
    with pytest.raises(ConfigError, match=match):
        sensitivity(**given)

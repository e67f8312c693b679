"""Sensitivity maps: against double backward passes, chunks, kinds of models, losses and targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from flhe.coding.sensitivity import sensitivity
from flhe.errors import ConfigError, RangeError
from flhe_lab.audit.lenet import lenet

Loss = Callable[[Any, Tensor], Tensor]


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_double_backward(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    every: int = 1,
    of: str = "labels",
) -> Tensor:
    """The definition, for each `every`-th parameter: two backward passes, sample by sample."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        one, label = x[None].clone(), y[None].clone()
        by = (one if of == "inputs" else label).requires_grad_()
        parts = torch.autograd.grad(
            loss(model(one), label), list(model.parameters()), create_graph=True
        )
        norms = []
        for entry in torch.cat([part.reshape(-1) for part in parts])[::every]:
            mixed = torch.autograd.grad(entry, by, retain_graph=True, allow_unused=True)[0]
            norms.append(torch.zeros(()) if mixed is None else mixed.norm())
        rows.append(torch.stack(norms))
    return torch.stack(rows).mean(0)


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in found.values()])


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def mlp(seed: int = 0, outputs: int = 4) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


INDICES = torch.tensor([0, 3, 1, 1, 2, 0, 3])
ROWS = functional.one_hot(INDICES, 4).float()


every_way = pytest.mark.parametrize(
    "how",
    [{}, {"of": "inputs", "probes": 99}],
    ids=["labels", "inputs"],
)
"""Of labels, and of inputs by as many probes as they have components: exactly."""


# --- against the definition ---


def check_lenet(every: int, count: int) -> None:
    model, images, labels = lenet(1), random(2, count, 3, 32, 32), torch.arange(count)
    found = sensitivity(model, functional.cross_entropy, [(images, labels)])
    assert {n: p.shape for n, p in found.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    rows = functional.one_hot(labels, 10).float()
    expected = by_double_backward(model, functional.cross_entropy, images, rows, every)
    assert_close(flat(found)[::every], expected)


def test_lenet() -> None:
    check_lenet(every=131, count=2)


@pytest.mark.sweep
def test_the_whole_of_lenet() -> None:
    check_lenet(every=1, count=2)


def quartic(output: Tensor, target: Tensor) -> Tensor:
    """Not linear in the target, and each output sees all of its components."""
    return ((output.sum(1, keepdim=True) - target) ** 4).sum() + (output * target**2).mean()


@pytest.mark.parametrize("loss", [functional.mse_loss, quartic, functional.huber_loss])
def test_regression(loss: Loss) -> None:
    model, inputs, targets = mlp(), random(3, 7, 5), random(4, 7, 4)
    found = sensitivity(model, loss, [(inputs, targets)])
    assert_close(flat(found), by_double_backward(model, loss, inputs, targets))


def test_one_component_is_the_absolute_value() -> None:
    """Squared error of a linear model: d/dy (dl/dw) = -2 x."""
    model, inputs, targets = nn.Linear(3, 1), random(5, 11, 3), random(6, 11, 1)
    found = sensitivity(model, functional.mse_loss, [(inputs, targets)])
    assert_close(found["weight"], 2 * inputs.abs().mean(0, keepdim=True))
    assert_close(found["bias"], torch.tensor([2.0]))


def test_cross_entropy_of_a_linear_model() -> None:
    """d/dy_c (dl/dw_jd) = x_d (softmax_j - [j = c]), by hand."""
    model, inputs = nn.Linear(5, 4), random(7, 7, 5)
    found = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)])
    softmax = model(inputs).detach().softmax(1)
    norms = (softmax[:, :, None] - torch.eye(4)).norm(dim=2)  # sample, output
    assert_close(found["bias"], norms.mean(0))
    assert_close(found["weight"], (norms[:, :, None] * inputs.abs()[:, None]).mean(0))


# --- batches, chunks, reductions ---


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 1000])
def test_batches_and_chunks_do_not_matter(chunk: int) -> None:
    inputs = random(3, 7, 5)
    whole = sensitivity(mlp(), functional.cross_entropy, [(inputs, INDICES)])
    cuts = [slice(0, 1), slice(1, 1), slice(1, 5), slice(5, 7)]
    batches = [(inputs[cut], INDICES[cut]) for cut in cuts]
    found = sensitivity(mlp(), functional.cross_entropy, iter(batches), chunk=chunk)
    assert_close(flat(found), flat(whole))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_do_not_matter(reduction: str) -> None:
    inputs = random(3, 7, 5)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction=reduction)

    expected = sensitivity(mlp(), functional.cross_entropy, [(inputs, INDICES)])
    assert_close(flat(sensitivity(mlp(), loss, [(inputs, INDICES)])), flat(expected))


def test_class_indices_are_one_hot_rows() -> None:
    inputs = random(3, 7, 5)
    found = sensitivity(mlp(), functional.cross_entropy, [(inputs, INDICES)])
    assert_close(flat(found), flat(sensitivity(mlp(), functional.cross_entropy, [(inputs, ROWS)])))


def test_class_indices_of_every_pixel() -> None:
    model, inputs = nn.Conv2d(2, 3, 1), random(8, 2, 2, 2, 2)
    indices = torch.tensor([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])
    rows = functional.one_hot(indices, 3).movedim(3, 1).float()
    found = sensitivity(model, functional.cross_entropy, [(inputs, indices)], chunk=5)
    assert_close(flat(found), by_double_backward(model, functional.cross_entropy, inputs, rows))


def test_progress() -> None:
    told: list[tuple[int, int, str]] = []
    batches = [(random(i, 2, 5), INDICES[:2]) for i in range(3)]
    for source in (batches, iter(range(3))):
        told.clear()
        pairs = source if isinstance(source, list) else (batches[i] for i in source)
        sensitivity(
            mlp(), functional.cross_entropy, pairs, progress=lambda *args: told.append(args)
        )
        totals = [3, 3, 3] if isinstance(source, list) else [1, 2, 3]
        assert told == [(i + 1, totals[i], "sensitivity") for i in range(3)]


# --- models ---


class Attention(nn.Module):
    """Takes mappings, gives mappings, and has one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
        mixed = self.embed(tokens) * scale[:, None, None]
        return {"logits": self.head(functional.scaled_dot_product_attention(*[mixed] * 3)[:, 0])}


def test_mappings_and_tied_weights() -> None:
    model = Attention()
    inputs = {"tokens": torch.tensor([[0, 1, 5], [2, 2, 3]]), "scale": torch.tensor([1.0, 0.5])}

    def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return functional.cross_entropy(output["logits"], target)

    found = sensitivity(model, loss, [(inputs, torch.tensor([4, 0]))], classes=6)
    assert list(found) == ["embed.weight"]
    whole = torch.zeros(6, 4)
    for i, label in enumerate((4, 0)):
        row = functional.one_hot(torch.tensor([label]), 6).float().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # which can be differentiated twice
            value = loss(model(**{n: t[i : i + 1] for n, t in inputs.items()}), row)
        gradient = torch.autograd.grad(value, model.embed.weight, create_graph=True)[0]
        mixed = [torch.autograd.grad(g, row, retain_graph=True)[0] for g in gradient.reshape(-1)]
        whole += torch.stack([m.norm() for m in mixed]).reshape(6, 4) / 2
    assert_close(found["embed.weight"], whole)


class Sum(nn.Module):
    """Two weights whose gradients are one tensor, and one that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.unused = (nn.Parameter(random(i, 5, 4)) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.one + self.two)


@pytest.mark.parametrize("chunk", [None, 1])
def test_weights_that_share_a_gradient_or_have_none(chunk: int | None) -> None:
    model, inputs = Sum(), random(3, 7, 5)
    found = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)], chunk=chunk)
    plain = nn.Linear(5, 4, bias=False)
    plain.weight = nn.Parameter((model.one + model.two).detach().T.clone())
    expected = sensitivity(plain, functional.cross_entropy, [(inputs, INDICES)])["weight"].T
    assert_close(found["one"], expected)
    assert_close(found["two"], expected)
    assert not found["unused"].any()


def test_buffers_modes_and_gradients_stay() -> None:
    """Batch norm takes its running statistics, and everything is as it was afterwards."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))
    model(random(9, 30, 5)).sum().backward()
    model[1].eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    inputs = random(3, 7, 5)
    with torch.no_grad():
        found = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)])
    assert [m.training for m in model] == [True, False, True, True]
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, gradient)
        assert p.requires_grad
    model.eval()
    expected = by_double_backward(model, functional.cross_entropy, inputs, ROWS)
    assert_close(flat(found), expected)


def test_frozen_parameters() -> None:
    model, inputs = mlp(), random(3, 7, 5)
    whole = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)])
    model[0].weight.requires_grad_(False)
    found = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)])
    assert list(found) == list(whole)
    assert found["0.weight"].shape == (6, 5)
    assert not found.pop("0.weight").any()
    whole.pop("0.weight")
    assert_close(flat(found), flat(whole))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@every_way
def test_types(how: dict[str, Any], dtype: torch.dtype) -> None:
    model, inputs = mlp().to(dtype), random(3, 7, 5).to(dtype)
    found = sensitivity(model, functional.cross_entropy, [(inputs, INDICES)], **how)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(part.dtype == wide for part in found.values())
    assert all(p.dtype == dtype for p in model.parameters())
    batches = [(inputs.to(wide), INDICES)]
    expected = sensitivity(model.to(wide), functional.cross_entropy, batches, **how)
    assert_close(flat(found), flat(expected))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 100:  # control flow that depends on data: vmap refuses it
            x = x / 100
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


@pytest.mark.parametrize(("of", "targets"), [("labels", ROWS), ("inputs", INDICES)])
def test_what_vmap_refuses_is_done_one_by_one(
    of: Any, targets: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model, inputs, loss = Recurrent(), random(3, 7, 2, 3), functional.cross_entropy
    with caplog.at_level(logging.WARNING, "flhe"):
        found = sensitivity(model, loss, [(inputs, INDICES)], of=of, probes=None, chunk=4)
    assert [r.message[:28] for r in caplog.records] == ["vmap does not take this mode"]
    assert_close(flat(found), by_double_backward(model, loss, inputs, targets, of=of))


# --- refusals ---


def nothing() -> Iterator[tuple[Tensor, Tensor]]:
    yield from ()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"batches": nothing()}, "no samples"),
        ({"batches": [(random(1, 0, 5), INDICES[:0])]}, "no samples"),
        ({"model": nn.Tanh()}, "no parameter that requires"),
        ({"model": mlp().requires_grad_(False)}, "no parameter that requires"),
        ({"loss": functional.nll_loss}, "give cross_entropy"),
        ({"loss": lambda o, y: functional.cross_entropy(o, y.argmax(1))}, "no gradient depends"),
        ({"loss": functional.l1_loss}, "no gradient depends"),
        ({"loss": lambda o, y: o * y}, r"shape \(1, 4\); reduce"),
        ({"batches": [(random(1, 3, 5), INDICES[:2])]}, r"\[3\] inputs and 2 targets"),
        ({"batches": [(random(1, 1, 5), torch.tensor([4]))]}, "must be 0 to 3"),
        ({"batches": [(random(1, 1, 5), torch.tensor([-100]))]}, "must be 0 to 3"),
        ({"model": mlp(outputs=1)}, "give `classes`"),
        ({"chunk": 0}, "at least 1"),
    ],
)
@pytest.mark.parametrize("of", ["labels", "inputs"])
def test_refusals(of: str, change: dict[str, Any], match: str) -> None:
    if of == "inputs" and match == "no gradient depends":
        return  # on labels: on inputs they do
    given: dict[str, Any] = {
        "model": mlp(),
        "loss": functional.cross_entropy,
        "batches": [(random(3, 7, 5), INDICES)],
        "of": of,
        **change,
    }
    with pytest.raises(ConfigError, match=match):
        sensitivity(**given)


@every_way
def test_what_is_not_finite(how: dict[str, Any]) -> None:
    inputs = random(3, 7, 5)
    inputs[3, 2] = torch.nan
    with pytest.raises(RangeError, match="NaN or infinity"):
        sensitivity(mlp(), functional.cross_entropy, [(inputs, INDICES)], **how)


def test_a_model_that_fails_says_so_itself() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sensitivity(mlp(), functional.cross_entropy, [(random(1, 7, 6), INDICES)])


class Shared(nn.Module):
    """One layer in two places, and its weight in a third."""

    def __init__(self, *, module: bool, weight: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a if module else nn.Linear(4, 4)
        self.c = nn.Linear(4, 4)
        if weight:
            self.c.weight = self.a.weight
        self.o = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            x = torch.tanh(layer(x))
        out: Tensor = self.o(x)
        return out


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize(("module", "weight"), [(True, False), (False, True), (True, True)])
def test_layers_and_weights_that_are_shared(module: bool, weight: bool, chunk: int | None) -> None:
    torch.manual_seed(3)
    model = Shared(module=module, weight=weight)
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    before = dict(model.named_parameters())
    values = {n: p.detach().clone() for n, p in before.items()}
    found = sensitivity(model, functional.cross_entropy, [(x, y)], chunk=chunk)
    # The model is as it was: the same Parameters, and training moves them.
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[n] is p for n, p in before.items())
    assert (model.b is model.a) == module
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert all(torch.equal(p.detach(), values[n]) for n, p in model.named_parameters())
    # And the map is that of the slow way.
    rows = functional.one_hot(y, 3).float()
    expected = by_double_backward(model, functional.cross_entropy, x, rows)
    assert_close(flat({name: found[name] for name in after}), expected)

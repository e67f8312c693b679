"""Sensitivity maps: against double backward passes, chunks, kinds of models, losses and targets."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from flhe.coding import sensitivity as module
from flhe.coding.sensitivity import of_all, sensitivity, tensors
from flhe.errors import ConfigError, RangeError
from tests.coding.models import Attending, Mixed, Recurrent, Shared, Sum, Tokens, mlp, random

Loss = Callable[[Any, Tensor], Tensor]


def by_double_backward(
    model: nn.Module, loss: Loss, inputs: Any, targets: Tensor, of: str = "labels"
) -> dict[str, Tensor]:
    """The definition: two backward passes for each parameter, sample by sample."""
    weights = dict(model.named_parameters())
    norms = {name: torch.zeros(weight.numel()) for name, weight in weights.items()}
    for i in range(len(targets)):
        one = of_all(lambda t, i=i: t[i : i + 1].clone(), inputs)
        label = targets[i : i + 1].clone()
        by = [t.requires_grad_() for t in (tensors(one) if of == "inputs" else [label])]
        with sdpa_kernel(SDPBackend.MATH):  # which can be differentiated twice
            value = loss(called(model, one), label)
        parts = torch.autograd.grad(
            value, list(weights.values()), create_graph=True, allow_unused=True
        )
        for name, part in zip(weights, parts, strict=True):
            for at, entry in enumerate(() if part is None else part.reshape(-1)):
                mixed = torch.autograd.grad(entry, by, retain_graph=True, allow_unused=True)
                found = [each.reshape(-1) for each in mixed if each is not None]
                norms[name][at] += torch.cat(found).norm() / len(targets) if found else 0
    return {name: norms[name].reshape(weight.shape) for name, weight in weights.items()}


def called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in found.values()])


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


LABELS, INPUTS = ("labels",), ("inputs",)
BOTH = LABELS + INPUTS
INDICES = torch.tensor([0, 3, 1, 1, 2, 0, 3])
ROWS = functional.one_hot(INDICES, 4).float()
X = random(3, 7, 5)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many probes as there are components."""
    monkeypatch.setattr(module, "PROBES", 10**6)


@pytest.fixture
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many gradients at a time; as many as usual, where none are said."""
    if request.param is not None:
        monkeypatch.setattr(module, "MOST", request.param)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_inputs(model: nn.Module, batches: Any, **how: Any) -> dict[str, Tensor]:
    return sensitivity(model, functional.cross_entropy, batches, of="inputs", **how)


# --- against the definition ---


def quartic(output: Tensor, target: Tensor) -> Tensor:
    """Not linear in the target, and each output sees all of its components."""
    return ((output.sum(1, keepdim=True) - target) ** 4).sum() + (output * target**2).mean()


def of_logits(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return functional.cross_entropy(output["logits"], target)


TOKENS = {"tokens": torch.tensor([[0, 1, 5], [2, 2, 3]]), "scale": torch.tensor([1.0, 0.5])}
SIX = functional.one_hot(torch.tensor([4, 0]), 6).float()
PIXELS = torch.tensor([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])
SEVERAL = (random(1, 7, 3), {"a": random(2, 7), "b": random(4, 7, 2)})
ENTROPY = functional.cross_entropy
MAPS: dict[str, tuple[Callable[[], nn.Module], Loss, Any, Tensor]] = {
    "cross entropy": (mlp, ENTROPY, X, INDICES),
    "not reduced": (mlp, functools.partial(ENTROPY, reduction="none"), X, ROWS),
    "squares": (mlp, functional.mse_loss, X, random(4, 7, 4)),
    "quartic": (mlp, quartic, X, random(4, 7, 4)),
    "every pixel": (lambda: nn.Conv2d(2, 3, 1), ENTROPY, random(8, 2, 2, 2, 2), PIXELS),
    "one component": (
        lambda: nn.Linear(3, 1),
        functional.mse_loss,
        random(5, 11, 3),
        random(6, 11, 1),
    ),
    "shared": (Shared, ENTROPY, random(3, 5, 4), torch.tensor([0, 1, 2, 1, 0])),
    "one gradient of two": (Sum, ENTROPY, X, INDICES),
    "several inputs": (Mixed, ENTROPY, SEVERAL, INDICES),
    "attention": (Attending, ENTROPY, random(3, 7, 2, 4), INDICES),
    "mappings": (Tokens, of_logits, TOKENS, SIX),
}


@pytest.mark.parametrize(
    ("name", "of"), [(n, of) for n in MAPS for of in BOTH if (n, of) != ("mappings", "inputs")]
)
@pytest.mark.parametrize("chunk", [None, 1, 2], indirect=True)
@pytest.mark.usefixtures("exact", "chunk")
def test_a_map_is_the_definition(name: str, of: Any) -> None:
    """However samples come in batches and chunks; and the model is as it was."""
    build, loss, inputs, targets = MAPS[name]
    torch.manual_seed(3)
    model = build()
    before = dict(model.named_parameters())
    values = {n: p.detach().clone() for n, p in before.items()}
    cuts = [slice(0, 1), slice(1, 1), slice(1, 4), slice(4, None)]
    batches = [(of_all(lambda t, cut=cut: t[cut], inputs), targets[cut]) for cut in cuts]
    found = sensitivity(model, loss, batches, of=of)
    assert list(found) == list(before)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[n] is p and torch.equal(p.detach(), values[n]) for n, p in before.items())
    rows = targets
    if not targets.is_floating_point():
        classes = called(model, inputs).shape[1]
        rows = functional.one_hot(targets, classes).movedim(-1, 1).float()
    expected = by_double_backward(model, loss, inputs, rows, of)
    assert {n: m.shape for n, m in found.items()} == {n: m.shape for n, m in expected.items()}
    assert_close(flat(found), flat(expected))


@pytest.mark.parametrize("chunk", [4], indirect=True)
@pytest.mark.usefixtures("exact", "chunk")
@pytest.mark.parametrize(("of", "targets"), [("labels", ROWS), ("inputs", INDICES)])
def test_what_vmap_refuses_is_done_one_by_one(
    of: Any, targets: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model, inputs, loss = Recurrent(), random(3, 7, 2, 3), functional.cross_entropy
    with caplog.at_level(logging.WARNING, "flhe"):
        found = sensitivity(model, loss, [(inputs, INDICES)], of=of)
    assert [r.message[:28] for r in caplog.records] == ["vmap does not take this mode"]
    assert_close(flat(found), flat(by_double_backward(model, loss, inputs, targets, of)))


# --- what does not matter ---


def test_frozen_parameters() -> None:
    model = mlp()
    whole = sensitivity(model, functional.cross_entropy, [(X, INDICES)])
    model[0].weight.requires_grad_(False)
    found = sensitivity(model, functional.cross_entropy, [(X, INDICES)])
    assert list(found) == list(whole)
    assert found["0.weight"].shape == (6, 5)
    assert not found.pop("0.weight").any()
    whole.pop("0.weight")
    assert_close(flat(found), flat(whole))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("of", ["labels", "inputs"])
def test_types(of: Any, dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    found = sensitivity(model, functional.cross_entropy, [(X.to(dtype), INDICES)], of=of)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(part.dtype == wide for part in found.values())
    assert all(p.dtype == dtype for p in model.parameters())
    batches = [(X.to(dtype).to(wide), INDICES)]
    expected = sensitivity(model.to(wide), functional.cross_entropy, batches, of=of)
    assert_close(flat(found), flat(expected))


# --- random probes ---


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("probes", "count", "chunk"),
    [(8, 1, 1), (8, 16, 24), (32, 1, 5)],
    indirect=["chunk"],
)
def test_the_error_of_random_probes(
    probes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as is said: 1 / sqrt(2 P K), and on the average 1 / (4 P) too small.

    Were probes shared by samples, copies of one sample, with norms alike, would err as one does.
    """
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4)).double()
    nn.init.normal_(model[0].weight, std=40**-0.5, generator=generator(1))
    nn.init.normal_(model[2].weight, std=30**-0.5, generator=generator(2))
    x, found = random(3, 1, 40).double(), []
    for taken, copies in ((40, 1), (probes, count)):
        monkeypatch.setattr(module, "PROBES", taken)
        batches = [(x.expand(copies, 40), INDICES[:1].expand(copies))]
        found.append(flat(by_inputs(model, batches, random=generator(5))))
    errors = found[1] / found[0] - 1
    said = (2 * probes * count) ** -0.5
    assert 0.4 * said < errors.std() < 1.4 * said
    assert abs(errors.mean() + 1 / (4 * probes)) < said


def test_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same gives the same map; without one, no two maps are the same."""
    monkeypatch.setattr(module, "PROBES", 2)
    maps = [flat(by_inputs(mlp(), [(X, INDICES)], random=generator(s))) for s in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], maps[2])
    fresh = []
    for _ in range(2):
        torch.manual_seed(0)
        fresh.append(flat(by_inputs(mlp(), [(X, INDICES)])))
    assert not torch.equal(*fresh)


# --- refusals ---


def of_class(index: int) -> dict[str, Any]:
    return {"batches": [(X[:1], torch.tensor([index]))]}


REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (BOTH, {"batches": [(X[:0], INDICES[:0])]}, "no samples"),
    (BOTH, {"model": mlp().requires_grad_(False)}, "no parameter that requires"),
    (BOTH, {"loss": functional.nll_loss}, "give cross_entropy"),
    (BOTH, {"loss": lambda o, y: o * y}, r"shape \(1, 4\); reduce"),
    (BOTH, {"batches": [(X[:3], INDICES[:2])]}, r"\[3\] inputs and 2 targets"),
    (BOTH, of_class(4), "must be 0 to 3"),
    (BOTH, of_class(-100), "must be 0 to 3"),
    (BOTH, {"model": mlp(outputs=1)}, "give targets as floats"),
    (("weights",), {}, 'must be "labels" or "inputs"'),
    (
        LABELS,
        {"loss": lambda o, y: functional.cross_entropy(o, y.argmax(1))},
        "no gradient depends on the labels",
    ),
    (
        INPUTS,
        {"loss": lambda o, y: o.detach().sum() + y.sum()},
        "no gradient depends on the inputs",
    ),
    (INPUTS, {"batches": [(torch.ones(7, 5).long(), INDICES)]}, 'int64.*use of="labels"'),
]


@pytest.mark.parametrize(
    ("of", "change", "match"), [(of, change, match) for ofs, change, match in REFUSED for of in ofs]
)
def test_refusals(of: str, change: dict[str, Any], match: str) -> None:
    given = {"model": mlp(), "loss": functional.cross_entropy, "batches": [(X, INDICES)], "of": of}
    with pytest.raises(ConfigError, match=match):
        sensitivity(**(given | change))


@pytest.mark.parametrize("of", ["labels", "inputs"])
def test_what_is_not_finite_and_a_model_that_fails(of: Any) -> None:
    inputs = X.clone()
    inputs[3, 2] = torch.nan
    with pytest.raises(RangeError, match="NaN or infinity"):
        sensitivity(mlp(), functional.cross_entropy, [(inputs, INDICES)], of=of)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sensitivity(mlp(), functional.cross_entropy, [(random(1, 7, 6), INDICES)], of=of)


def test_buffers_modes_and_gradients_stay() -> None:
    """Batch norm takes its running statistics, and everything is as it was afterwards."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))
    model(random(9, 30, 5)).sum().backward()
    model[1].eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    with torch.no_grad():
        found = sensitivity(model, functional.cross_entropy, [(X, INDICES)])
    assert [m.training for m in model] == [True, False, True, True]
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient is not None
        assert torch.equal(p.grad, gradient)
        assert p.requires_grad
    model.eval()
    assert_close(flat(found), flat(by_double_backward(model, functional.cross_entropy, X, ROWS)))

r"""Cost of a sensitivity map, beside the definition taken at its word.

    python -m flhe.sim.sensitivity_cost
    python -m flhe.sim.sensitivity_cost --whole

The definition: for each parameter, a second backward pass from its entry of the gradient to the labels,
of all samples at once. It is timed on every 16th parameter of LeNet and projected, or whole, once.
Both take turns, on one processor.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from flhe.coding.sensitivity import sensitivity
from flhe.sim.audit.lenet import SIZE, lenet
from flhe.sim.bench import Times, pinned

CLASSES = 10
EVERY = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a map of `samples` samples.

    Parameters
    ----------
    ours, reference : Times
        Over the repeats; the reference's are projected where `every` is above 1.
    every : int
        The reference was taken of so many parameters' first.
    error : float
        Largest difference of the two, over the largest sensitivity.
    """

    samples: int
    ours: Times
    reference: Times
    every: int
    error: float

    @property
    def ratio(self) -> float:
        """How often ours fits into the reference, minimum by minimum."""
        return self.reference.min / self.ours.min


def double_backward(model: nn.Module, images: Tensor, rows: Tensor, every: int) -> Tensor:
    """The map of every `every`-th parameter, by its definition; labels are rows of probabilities."""
    labels = rows.clone().requires_grad_()
    loss = cross_entropy(model(images), labels, reduction="sum")
    parts = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    gradient = torch.cat([part.reshape(-1) for part in parts])
    found = [
        torch.autograd.grad(gradient[m], labels, retain_graph=True)[0].norm(dim=1).mean()
        for m in range(0, len(gradient), every)
    ]
    return torch.stack(found)


def measure(samples: int = 16, repeats: int = 3, every: int = EVERY, seed: int = 0) -> Cost:
    """Time both on a LeNet and images of noise; the first turn of ours does not count."""
    model = lenet(seed)
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(samples, 3, SIZE, SIZE, generator=random)
    labels = torch.randint(CLASSES, (samples,), generator=random)
    ours, reference = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pinned(1):
            sensitivity(model, cross_entropy, [(images, labels)])
            for _ in range(repeats):
                began = time.perf_counter()
                found = sensitivity(model, cross_entropy, [(images, labels)])
                between = time.perf_counter()
                expected = double_backward(model, images, one_hot(labels, CLASSES).float(), every)
                ours.append(between - began)
                reference.append(time.perf_counter() - between)
    finally:
        torch.set_num_threads(threads)
    whole = torch.cat([part.reshape(-1) for part in found.values()])
    error = float((whole[::every] - expected).abs().max() / expected.abs().max())
    times = Times.of(ours), Times.of(reference)
    assert times[0] is not None
    assert times[1] is not None
    projection = len(whole) / len(expected)
    return Cost(samples, times[0], times[1].projected(projection), every, error)


def command(
    samples: Annotated[int, typer.Option(help="Samples of the map.")] = 16,
    repeats: Annotated[int, typer.Option(help="Turns that count.")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="The whole reference, once.")] = False,
) -> None:
    """Time a sensitivity map of LeNet against second backward passes, one for each parameter."""
    cost = measure(samples, 1 if whole else repeats, 1 if whole else EVERY)
    how = "" if whole else ", projected"
    typer.echo(
        f"{samples} samples: ours {1e3 * cost.ours.min:.1f} ms (median {1e3 * cost.ours.median:.1f}), "
        f"double backward {cost.reference.min:.1f} s (median {cost.reference.median:.1f}{how}), "
        f"{cost.ratio:,.0f} times as long; largest difference {cost.error:.1e} of the largest"
    )


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()

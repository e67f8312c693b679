"""Mixed derivatives: of every parameter's gradient by the label or the inputs, their norms added up.

    sum over samples of || d/dz (d loss(x, y; W) / d w_m) ||        for each parameter w_m, z = y or x

The order of derivatives is exchanged: each component of d loss/dz takes one backward pass. A label has
few components. Inputs have thousands, of which random combinations are taken instead: for signs v,
independent and fair,

    || d/dz g_m ||^2 = E (d (v . d loss/dz) / d w_m)^2

In small models, samples and components go through together, by vmap. Large ones gain nothing by it, and
some vmap refuses (recurrent ones, control flow that depends on data): those take components one by one.

Source: Hutchinson (Commun. Stat. Simul. Comput. 1990), the random signs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
    Loss = Callable[[Any, Tensor], Tensor]
    Weights = dict[str, Tensor]

Of = Literal["labels", "inputs"]

logger = logging.getLogger("flhe")


def of_all(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Inputs with each of their tensors changed."""
    if isinstance(inputs, Mapping):
        return {name: of_all(change, each) for name, each in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(of_all(change, each) for each in inputs)
    return change(inputs)


def tensors(inputs: Inputs) -> list[Tensor]:
    """Those of the inputs, in the order of `of_all`."""
    found: list[Tensor] = []
    of_all(found.append, inputs)
    return found


@dataclass(slots=True)
class MixedDerivatives:
    """A model in eval mode and its loss, ready to be differentiated; see `sensitivity`.

    Parameters
    ----------
    weights, others : dict[str, Tensor]
        What to differentiate by, on one device; frozen parameters and buffers.
    places : dict[str, str]
        Where the model holds tensors, each place once -> by which of these names.
    chunk : int
        Gradients, at least one, each of the size of the weights, that are made at a time.
    refused : bool
        Whether vmap has refused the model.
    """

    model: nn.Module
    loss: Loss
    weights: Weights
    others: Weights
    places: dict[str, str]
    of: Of
    probes: int | None
    random: torch.Generator
    chunk: int = 1
    refused: bool = False

    @property
    def like(self) -> Tensor:
        """A tensor of the type and on the device that everything has."""
        return next(iter(self.weights.values()))

    def output(self, weights: Weights, inputs: Inputs) -> Any:
        """What the model gives for a batch."""
        from torch.func import functional_call

        known = {**weights, **self.others}
        values = {place: known[name] for place, name in self.places.items()}
        # Each place once, and no ties: else torch swaps a shared module's tensors twice, and then puts
        # back its own.
        if isinstance(inputs, Mapping):
            return functional_call(self.model, values, (), dict(inputs), tie_weights=False)
        return functional_call(self.model, values, inputs, tie_weights=False)

    def norms(self, inputs: Inputs, targets: Tensor) -> Weights:
        """Norms of a batch's samples, added up: names and shapes of the weights.

        Samples, one at least, are along the first dimension of inputs and `targets`, which are floats.
        """
        import torch

        length = max(1, self.chunk // max(1, self._passes(self._by(inputs, targets))))
        total: Weights = {}
        for at in range(0, len(targets), length):
            part = slice(at, at + length)
            some, norms = of_all(lambda t, part=part: t[part], inputs), None  # type: ignore[misc]
            if self.chunk > 1 and not self.refused:
                try:
                    norms = self._together(some, targets[part])
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    # Where the model itself is at fault, the other way fails as well, and says so.
                    self.refused = True
                    logger.warning(
                        "vmap does not take this model: its sensitivity is computed one sample after "
                        "the other, which may take longer"
                    )
            add(total, self._one_by_one(some, targets[part]) if norms is None else norms)
        return total

    def _by(self, inputs: Inputs, targets: Tensor) -> list[Tensor]:
        """What gradients are differentiated by."""
        return [targets] if self.of == "labels" else tensors(inputs)

    def _value(
        self, weights: Weights, inputs: Inputs, target: Tensor, by: Iterator[Tensor]
    ) -> Tensor:
        """Loss of a batch of one, with `by` in the place of what gradients are differentiated by."""
        if self.of == "labels":
            target = next(by)
        else:
            inputs = of_all(lambda _: next(by), inputs)
        return self.loss(self.output(weights, inputs), target).reshape(())

    def _passes(self, by: list[Tensor]) -> int:
        """Backward passes that a sample takes."""
        size = sum(each[0].numel() for each in by)
        return size if self.probes is None else min(self.probes, size)

    def _directions(self, by: list[Tensor], most: int) -> Iterator[list[Tensor]]:
        """Directions for each sample of `by`, `most` at a time, of shapes (samples, some, *sample)."""
        import torch

        count, sizes = len(by[0]), [each[0].numel() for each in by]
        passes = self._passes(by)
        for at in range(0, passes, most):
            some = min(most, passes - at)
            if passes == sum(sizes):
                units = by[0].new_zeros(some, passes)
                units.diagonal(at).fill_(1)
                rows = units.expand(count, some, passes)
            else:
                shape, where = (count, some, sum(sizes)), self.random.device
                bits = torch.randint(
                    0, 2, shape, generator=self.random, device=where, dtype=torch.int8
                )
                rows = (2 * bits - 1).to(by[0]).mul_(passes**-0.5)
            yield [
                part.reshape(count, some, *each.shape[1:]).to(each)
                for part, each in zip(torch.split(rows, sizes, dim=2), by, strict=True)
            ]

    def _together(self, inputs: Inputs, targets: Tensor) -> Weights:
        from torch.func import grad, vjp, vmap
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def rows(inputs: Inputs, target: Tensor, directions: list[Tensor]) -> Weights:
            one = of_all(lambda t: t[None], inputs)

            def value(by: list[Tensor], weights: Weights) -> Tensor:
                return self._value(weights, one, target[None], (each[None] for each in by))

            by = self._by(inputs, target)
            pull = vjp(lambda weights: grad(value)(by, weights), self.weights)[1]
            found: Weights = vmap(lambda direction: pull(direction)[0])(directions)
            return found

        squares: Weights = {}
        each = vmap(rows, randomness="different")
        for directions in self._directions(self._by(inputs, targets), self.chunk):
            with sdpa_kernel(SDPBackend.MATH):  # vmap takes fused attention item by item
                gradients = each(inputs, targets, directions)
            # Not by vector_norm: over a dimension in the middle it takes ten times as long.
            add(squares, {name: found.square().sum(1) for name, found in gradients.items()})
        return {name: square.sqrt_().sum(0) for name, square in squares.items()}

    def _one_by_one(self, inputs: Inputs, targets: Tensor) -> Weights:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Fused attention can be differentiated once, which is enough for labels.
        attention = nullcontext if self.of == "labels" else lambda: sdpa_kernel(SDPBackend.MATH)
        leaves = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        total: Weights = {}
        for i in range(len(targets)):
            one = of_all(lambda t, i=i: t[i : i + 1], inputs)  # type: ignore[misc]
            by = [t.detach().requires_grad_() for t in self._by(one, targets[i : i + 1])]
            with attention():
                value = self._value(leaves, one, targets[i : i + 1], iter(by))
            slopes = torch.autograd.grad(value, by, create_graph=True, allow_unused=True)
            known = [k for k, s in enumerate(slopes) if s is not None and s.requires_grad]
            squares = {name: torch.zeros_like(leaf) for name, leaf in self.weights.items()}
            for directions in self._directions(by, 1) if known else ():
                found = torch.autograd.grad(
                    [slopes[k] for k in known],
                    list(leaves.values()),
                    [directions[k][:, 0] for k in known],
                    retain_graph=True,
                    allow_unused=True,
                )
                for square, each in zip(squares.values(), found, strict=True):
                    if each is not None:
                        square.addcmul_(each, each)
            add(total, {name: square.sqrt_() for name, square in squares.items()})
        return total


def add(total: Weights, part: Weights) -> None:
    """Add `part` to `total`, in place."""
    for name, each in part.items():
        total[name] = total[name] + each if name in total else each

"""Label gradients: derivatives of every parameter's gradient by the label, their norms added up.

    sum over samples of || d/dy (d loss(x, y; W) / d w_m) ||        for each parameter w_m

The order of derivatives is exchanged: d loss/dy has as many components as the label, and each takes one
backward pass, where the derivatives of the gradient's entries take one for each parameter. Nor need the
model be differentiable twice.

In small models, samples and components go through together, by vmap. Large ones gain nothing by it, and
some vmap refuses (recurrent ones, control flow that depends on data): those take components one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
    Loss = Callable[[Any, Tensor], Tensor]
    Weights = dict[str, Tensor]

logger = logging.getLogger("flhe")


def of_all(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Inputs with each of their tensors changed."""
    if isinstance(inputs, Mapping):
        return {name: of_all(change, each) for name, each in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(of_all(change, each) for each in inputs)
    return change(inputs)


@dataclass(slots=True)
class LabelGradients:
    """A model and its loss, ready to be differentiated.

    Parameters
    ----------
    model : nn.Module
        In eval mode; its own values do not matter.
    loss : callable
        (output, target) -> one number, for a batch of one.
    weights : dict[str, Tensor]
        What to differentiate by, on one device.
    others : dict[str, Tensor]
        Frozen parameters and buffers.
    chunk : int
        Gradients, each of the size of the weights, that are made at a time.
    refused : bool
        Whether vmap has refused the model.
    """

    model: nn.Module
    loss: Loss
    weights: Weights
    others: Weights
    chunk: int
    refused: bool = False

    @property
    def like(self) -> Tensor:
        """A tensor of the type and on the device that everything has."""
        return next(iter(self.weights.values()))

    def output(self, weights: Weights, inputs: Inputs) -> Any:
        """What the model gives for a batch."""
        from torch.func import functional_call

        values = {**weights, **self.others}
        if isinstance(inputs, Mapping):
            return functional_call(self.model, values, (), dict(inputs))
        return functional_call(self.model, values, inputs)

    def norms(self, inputs: Inputs, targets: Tensor) -> Weights:
        """Norms of a batch's samples, added up.

        Parameters
        ----------
        inputs
            Samples along the first dimension of each tensor.
        targets : Tensor
            Floats (count, ...), at least one.

        Returns
        -------
        dict[str, Tensor]
            Names and shapes of the weights.
        """
        import torch

        length = max(1, self.chunk // max(1, targets[0].numel()))
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

    def _value(self, weights: Weights, inputs: Inputs, target: Tensor) -> Tensor:
        return self.loss(self.output(weights, inputs), target).reshape(())

    def _directions(self, target: Tensor) -> Iterator[Tensor]:
        """Unit vectors of a label, at most `chunk` at a time, shape (some, *label)."""
        size = target.numel()
        for at in range(0, size, self.chunk):
            some = min(self.chunk, size - at)
            units = target.new_zeros(some, size)
            units.diagonal(at).fill_(1)
            yield units.reshape(some, *target.shape)

    def _together(self, inputs: Inputs, targets: Tensor) -> Weights:
        from torch.func import grad, vjp, vmap
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def rows(inputs: Inputs, target: Tensor, directions: Tensor) -> Weights:
            one = of_all(lambda t: t[None], inputs)

            def slope(weights: Weights) -> Any:
                return grad(lambda y: self._value(weights, one, y[None]))(target)

            pull = vjp(slope, self.weights)[1]
            found: Weights = vmap(lambda direction: pull(direction)[0])(directions)
            return found

        squares: Weights = {}
        each = vmap(rows, in_dims=(0, 0, None), randomness="different")
        for directions in self._directions(targets[0]):
            with sdpa_kernel(SDPBackend.MATH):  # vmap takes fused attention item by item
                gradients = each(inputs, targets, directions)
            # Not by vector_norm: over a dimension in the middle it takes ten times as long.
            add(squares, {name: found.square().sum(1) for name, found in gradients.items()})
        return {name: square.sqrt_().sum(0) for name, square in squares.items()}

    def _one_by_one(self, inputs: Inputs, targets: Tensor) -> Weights:
        import torch

        leaves = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        total: Weights = {}
        for i in range(len(targets)):
            one = of_all(lambda t, i=i: t[i : i + 1], inputs)  # type: ignore[misc]
            target = targets[i : i + 1].detach().requires_grad_()
            value = self._value(leaves, one, target)
            slope = torch.autograd.grad(value, target, create_graph=True, allow_unused=True)[0]
            squares = {name: torch.zeros_like(leaf) for name, leaf in self.weights.items()}
            for component in () if slope is None or not slope.requires_grad else slope.flatten():
                found = torch.autograd.grad(
                    component, list(leaves.values()), retain_graph=True, allow_unused=True
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

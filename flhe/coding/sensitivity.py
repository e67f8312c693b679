"""Sensitivity: how much each parameter's gradient reveals about its data.

    S_m = 1/K sum over k of || d/dz_k (d loss(x_k, y_k; W) / d w_m) ||

z = y is the paper's map, by labels; z = x is ours, by inputs, which hid more from `flhe audit`.

The loss is that of one sample, so neither "mean" nor "sum" as its reduction changes the map. A
label is differentiated by all its components. Class indices become one-hot rows, with a component
for each class; a float target is used unchanged. || || is the Euclidean norm over the components of
label or inputs, as in Novak et al. (ICLR 2018), on which the paper builds.

The map depends on inputs and labels: treat it as private as they are, and send it encrypted only.

The order of derivatives is exchanged: each component of d loss/dz takes one backward pass. A label
has few components. Inputs have thousands, so random combinations replace them: for signs v,
independent and fair,

    || d/dz g_m ||^2 = E (d (v . d loss/dz) / d w_m)^2

In small models, vmap computes samples and components together. Large models gain nothing from it,
and vmap refuses some models (recurrent ones, control flow that depends on data). Those compute
components one by one.

Source: FedML-HE, Sec. 2.4, step 1; Hutchinson (Commun. Stat. Simul. Comput. 1990), the random
signs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from flhe.errors import ConfigError, RangeError, logger
from flhe.packages import install_hint

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
    Loss = Callable[[Any, Tensor], Tensor]
    Weights = dict[str, Tensor]

Of = Literal["labels", "inputs"]

BUDGET = 32 << 20
"""Maximum bytes of gradients that are made at a time: more are slower."""

MOST = 256
"""Maximum gradients of the smallest models that are made at a time."""

PROBES = 8
"""Random combinations of the inputs' components for each sample; at most all components."""


def sensitivity(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[tuple[Inputs, Tensor]],
    *,
    of: Of = "labels",
    random: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return the mean sensitivity of each parameter over all samples.

    The model is temporarily in eval mode and otherwise unchanged. Parameters and inputs of 16 bits
    are converted to float32.

    Norms over inputs are estimated by P = PROBES random probes. The norm of one sample has a
    relative error of about 1 / sqrt(2 P), 25%; the mean over K samples of like norms, of 1 / sqrt(2
    P K). Both are about 1 / (4 P) too small, 3%, all parameters alike, which selects the same.
    Norms with a single non-zero component have no error. Norms over labels are exact.

    Raises ConfigError: nothing to differentiate: no samples, no parameters, inputs that are
    integers, a loss that is not differentiable in the target, or not twice; targets that do not fit
    inputs or output; no torch; RangeError: NaN or infinity in the map.

    Parameters
    ----------
    model : nn.Module
        Any. Parameters that require no gradient are not trained and reveal nothing: their map is 0.
    loss : callable
        (output, target) -> one number, for a batch of one; differentiable in a float target, as
        `torch.nn.functional.cross_entropy` is in probabilities. For the map by inputs, model and loss
        must be differentiable twice.
    batches : iterable of (inputs, targets)
        Inputs: a tensor, or a tuple or mapping of tensors, passed as `model(*inputs)` or
        `model(**inputs)`; their first dimension counts samples. Targets: class indices, integers
        (count, ...), of as many classes as the output's second dimension has, or floats (count, ...).
    of : {"labels", "inputs"}
        Variable of the outer derivative; inputs must be floats.
    random : torch.Generator, optional
        Source of the probes; one with a secret seed by default.

    Returns
    -------
    dict[str, Tensor]
        Names, order and shapes of `model.named_parameters()`; float32 (float64 for parameters of that
        type), on the CPU. Buffers have none.
    """
    if of not in ("labels", "inputs"):
        raise ConfigError(f'sensitivity: of={of!r}, must be "labels" or "inputs"')
    torch = _torch()
    if random is None:
        random = torch.Generator().manual_seed(secrets.randbits(63))
    total: Weights = {}
    count, classes = 0, None
    with _evaluating(model), torch.enable_grad():
        job = MixedDerivatives(model, loss, of, random)
        for inputs, targets in batches:
            if len(targets):
                ready = of_all(lambda t: _widened(t).to(job.like.device), inputs)
                _check(ready, targets, of)
                job.chunk = _chunk(job, ready)
                if not count:
                    classes = _try(job, ready, targets)
                add(total, job.norms(ready, _floats(targets, classes, job.like)))
                count += len(targets)
    return _mean(model, total, count, of)


def _mean(model: nn.Module, total: Weights, count: int, of: Of) -> dict[str, Tensor]:
    if not count:
        raise ConfigError("sensitivity: the batches hold no samples; give at least one")
    if not all(bool(part.isfinite().all()) for part in total.values()):
        raise RangeError(
            "the sensitivity holds NaN or infinity; look for them in the model's parameters and "
            "in its inputs"
        )
    if not any(bool(part.any()) for part in total.values()):
        raise ConfigError(
            f"sensitivity: no gradient depends on the {of}. Give a loss that can be differentiated "
            "in output and target, like cross_entropy or mse_loss; argmax and absolute errors cannot"
        )
    return {
        name: total[name].div(count).cpu()
        if name in total
        else _torch().zeros_like(_widened(parameter.detach()), device="cpu")
        for name, parameter in model.named_parameters()
    }


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ConfigError(f"sensitivity maps need torch: {install_hint('torch')}") from None
    return torch


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


def places_of(model: nn.Module) -> dict[str, str]:
    """Return the places of the model's tensors, each once, and the names that they are known by.

    A shared module is one place; a weight that is tied in several modules is several.
    """
    names = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    places = {}
    for path, module in model.named_modules():
        for own, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                places[f"{path}.{own}" if path else own] = names[id(tensor)]
    return places


def _chunk(job: MixedDerivatives, inputs: Inputs) -> int:
    """Return how many gradients and directions at a time fit into the budget."""
    size = sum(weight.nbytes for weight in job.weights.values())
    if job.of == "inputs":
        size = max(size, sum(each[0].nbytes for each in tensors(inputs)))
    return min(MOST, max(1, BUDGET // size))


def _check(inputs: Inputs, targets: Tensor, of: Of) -> None:
    each = tensors(inputs)
    sizes = {len(one) for one in each}
    if sizes != {len(targets)}:
        raise ConfigError(
            f"sensitivity: a batch of {sorted(sizes)} inputs and {len(targets)} targets; the first "
            "dimension of each must count its samples"
        )
    others = {str(one.dtype) for one in each if not one.is_floating_point()}
    if of == "inputs" and others:
        raise ConfigError(
            f"sensitivity: the inputs hold {', '.join(sorted(others))}, by which nothing can be "
            'differentiated; for token ids and the like use of="labels"'
        )


def _try(job: MixedDerivatives, inputs: Inputs, targets: Tensor) -> int | None:
    """Return the number of classes, after a trial of the loss on the first sample."""
    torch = _torch()
    with torch.no_grad():
        output = job.output(job.weights, of_all(lambda t: t[:1], inputs))
        many = isinstance(output, torch.Tensor) and output.ndim > 1
        classes = output.shape[1] if many else None
        one = _floats(targets[:1], classes, job.like)
        try:
            shape = tuple(job.loss(output, one).shape)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"sensitivity: the loss does not take a float target of shape {tuple(one.shape)} "
                f"({type(error).__name__}); class indices become one-hot rows, to be differentiated: "
                "for nll_loss give cross_entropy, which takes probabilities"
            ) from error
    if shape not in ((), (1,)):
        raise ConfigError(
            f"sensitivity: the loss of one sample has shape {shape}; reduce it to one number"
        )
    return classes


def _floats(targets: Tensor, classes: int | None, like: Tensor) -> Tensor:
    """Return float targets as they are, class indices as one-hot rows (class in dimension 1)."""
    torch = _torch()
    if not targets.is_floating_point() and targets.dtype != torch.bool:
        if classes is None or classes < 2:
            raise ConfigError(
                "sensitivity: targets are class indices, but the output has no second dimension of "
                "two classes or more; give targets as floats"
            )
        if not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise ConfigError(f"sensitivity: class indices must be 0 to {classes - 1}")
        targets = torch.nn.functional.one_hot(targets.long(), classes).movedim(-1, 1)
    return targets.to(like)


# --- mixed derivatives ---


def of_all(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Return inputs with each of their tensors changed."""
    if isinstance(inputs, Mapping):
        return {name: of_all(change, each) for name, each in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(of_all(change, each) for each in inputs)
    return change(inputs)


def tensors(inputs: Inputs) -> list[Tensor]:
    """Return the tensors of the inputs, in the order of `of_all`."""
    found: list[Tensor] = []
    of_all(found.append, inputs)
    return found


class MixedDerivatives:
    """A model in eval mode and its loss, ready to be differentiated; see `sensitivity`.

    Attributes
    ----------
    weights, others : dict[str, Tensor]
        Variables of the derivative, on one device; frozen parameters and buffers.
    chunk : int
        Gradients, at least one, each of the size of the weights, that are made at a time.
    refused : bool
        True if vmap has refused the model.
    """

    def __init__(self, model: nn.Module, loss: Loss, of: Of, random: torch.Generator) -> None:
        self.model, self.loss, self.of, self.random = model, loss, of, random
        self.chunk, self.refused = 1, False
        self.weights: Weights = {}
        self.others: Weights = {}
        for name, parameter in model.named_parameters():
            kind = self.weights if parameter.requires_grad else self.others
            kind[name] = _widened(parameter.detach())
        for name, buffer in model.named_buffers():
            self.others[name] = _widened(buffer.detach())
        if not any(weight.numel() for weight in self.weights.values()):
            raise ConfigError("sensitivity: the model has no parameter that requires a gradient")
        self._places = places_of(model)

    @property
    def like(self) -> Tensor:
        """A tensor with the type and device of all others."""
        return next(iter(self.weights.values()))

    def output(self, weights: Weights, inputs: Inputs) -> Any:
        """Return the model's output for a batch."""
        from torch.func import functional_call

        known = {**weights, **self.others}
        values = {place: known[name] for place, name in self._places.items()}
        # Each place once, without ties: else torch swaps a shared module's tensors twice, and then
        # restores its own.
        if isinstance(inputs, Mapping):
            return functional_call(self.model, values, (), dict(inputs), tie_weights=False)
        return functional_call(self.model, values, inputs, tie_weights=False)

    def norms(self, inputs: Inputs, targets: Tensor) -> Weights:
        """Return the summed norms of a batch's samples: names and shapes of the weights.

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
                    # If the model itself is at fault, the other way fails as well, with its error.
                    self.refused = True
                    logger.warning(
                        "vmap does not take this model: its sensitivity is computed one sample after "
                        "the other, which may take longer"
                    )
            add(total, self._one_by_one(some, targets[part]) if norms is None else norms)
        return total

    def _by(self, inputs: Inputs, targets: Tensor) -> list[Tensor]:
        """Return the variables of the outer derivative."""
        return [targets] if self.of == "labels" else tensors(inputs)

    def _value(
        self, weights: Weights, inputs: Inputs, target: Tensor, by: Iterator[Tensor]
    ) -> Tensor:
        """Return the loss of a batch of one, with `by` in place of the variables of `_by`."""
        if self.of == "labels":
            target = next(by)
        else:
            inputs = of_all(lambda _: next(by), inputs)
        return self.loss(self.output(weights, inputs), target).reshape(())

    def _passes(self, by: list[Tensor]) -> int:
        size = sum(each[0].numel() for each in by)
        return size if self.of == "labels" else min(PROBES, size)

    def _directions(self, by: list[Tensor], most: int) -> Iterator[list[Tensor]]:
        """Yield directions for each sample of `by`, `most` at a time: (samples, some, *sample)."""
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
            with sdpa_kernel(SDPBackend.MATH):  # vmap runs fused attention item by item
                gradients = each(inputs, targets, directions)
            # Without vector_norm: over a dimension in the middle it takes ten times as long.
            add(squares, {name: found.square().sum(1) for name, found in gradients.items()})
        return {name: square.sqrt_().sum(0) for name, square in squares.items()}

    def _one_by_one(self, inputs: Inputs, targets: Tensor) -> Weights:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Fused attention is differentiable once, which is enough for labels.
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

"""Tools for a DP-SGD app: batches that accounting is valid for, and per-example clipped gradients.

    @app.train()
    def train(msg, ctx):
        batch = poisson_batch(len(labels), SAMPLING)
        sums = clipped_gradients(model, cross_entropy, images[batch], labels[batch], max_norm=NORM)
        return reply(msg, sums, max_norm=NORM, sampling=SAMPLING)

The reply states the clipping norm and the sampling rate. The node compares them with the terms of
the noise, and sends nothing if they differ.

Epsilon is valid for batches that hold each record with the same probability, independently of all
others. A shuffled epoch or a batch of fixed size does not satisfy this. The strategy is
`flhe.strategies.dp_fedsgd`.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import PROMISED
from flhe.coding.sensitivity import places_of
from flhe.errors import ConfigError
from flhe.math.prg import drawn, words

if TYPE_CHECKING:
    from flwr.app import Message
    from torch import Tensor, nn

    from flhe.wire.secret import Random

Loss = Callable[["Tensor", "Tensor"], "Tensor"]
"""(outputs of some examples, their targets) -> mean loss, as of `torch.nn.functional`."""


def poisson_batch(
    count: int, sampling: float, random: Random = secrets.token_bytes
) -> NDArray[np.int64]:
    """Return the batch, of `count` records, with each in it at that probability; int64, ascending.

    Batches are secret, like noise, so a CSPRNG draws them, without a seed. A batch may be empty.
    Raises ConfigError: a probability that is not above 0 and 1 at most.
    """
    if not 0 < sampling <= 1:
        raise ConfigError(f"poisson_batch(sampling={sampling}): must be above 0, and 1 at most")
    bound = np.uint64(min(math.floor(sampling * 2.0**64), (1 << 64) - 1))
    # Fixed counter block. Safe because the key is fresh and used for this batch alone.
    drawn_words = words(drawn(random, 32), 0, count)
    chosen = [np.flatnonzero(part < bound) + at for at, part in drawn_words]
    return np.concatenate(chosen) if chosen else np.empty(0, np.int64)


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that require a gradient; ConfigError if none can be one record's."""
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"layer {name!r} mixes the examples of a batch, so no gradient is one record's: use "
                "group norm or layer norm"
            )
        # Refused here, where the batch is not looked at: a failure on some batches would reveal them.
        if isinstance(module, torch.nn.RNN | torch.nn.GRU | torch.nn.RNNCell | torch.nn.GRUCell):
            raise ConfigError(
                f"layer {name!r}: torch takes no gradient of one record through a "
                f"{type(module).__name__}; use an LSTM or attention"
            )
    state = model.state_dict()
    if odd := [name for name, value in state.items() if not value.is_floating_point()]:
        raise ConfigError(f"buffer {odd[0]!r} is not floating-point: noise is added to floats only")
    trained = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    if not trained:
        raise ConfigError("clipped_gradients: the model has no parameter that requires a gradient")
    if small := [name for name, value in trained.items() if value.itemsize < 4]:
        raise ConfigError(
            f"parameter {small[0]!r} must be float32 or float64, not {trained[small[0]].dtype}: with a "
            "sum rounded to 16 bits one record may change it by more than max_norm; use model.float()"
        )
    return trained


def _squares(gradients: Tensor) -> Tensor:
    """Return the squared norm of each example's gradient, float64 (examples,)."""
    return gradients.unsqueeze(-1).flatten(1).double().square().sum(1)


def clipped_gradients(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    max_norm: float,
    at_a_time: int = 64,
) -> dict[str, Tensor]:
    """Return the sum over examples of gradients, each scaled down to the L2 norm `max_norm`.

    The result has the names, shapes and precision of the model's state: gradients of parameters; zeros
    for parameters without gradients and for floating-point buffers. A tied weight's gradient is under
    each of its names, and counts in the norm as often, because all are sent. `inputs` and `targets`
    hold one example a row; `at_a_time` of them are in memory with a gradient each. No examples give
    zeros, and so does one whose gradient is not finite.

    Raises ConfigError: a norm that is not positive, or `at_a_time` below 1; inputs and targets of
    two lengths; no parameter that requires a gradient, or one of 16 bits; a buffer that is not
    floating-point, or a layer whose outputs mix examples (batch norm), so that no gradient is of one
    example.
    """
    import torch
    from torch.func import functional_call, grad, vmap

    if not 0 < max_norm < math.inf:
        raise ConfigError(f"clipped_gradients(max_norm={max_norm}): must be positive and finite")
    if at_a_time < 1:
        raise ConfigError(f"clipped_gradients(at_a_time={at_a_time}): must be 1 or more")
    if len(inputs) != len(targets):  # the batch's size is secret, so the text has none
        raise ConfigError("clipped_gradients: inputs and targets must have a row for each example")
    state, trained = model.state_dict(keep_vars=True), _trained(model)
    known = dict((*model.named_parameters(), *model.named_buffers()))
    first = {id(value): name for name, value in known.items()}
    names = {name: first.get(id(value), name) for name, value in state.items()}
    copies, places = Counter(names.values()), places_of(model)
    fixed = {name: value.detach() for name, value in known.items() if name not in trained}

    def of_one(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        values = {**fixed, **weights}
        placed = {place: values[name] for place, name in places.items()}
        outputs = functional_call(model, placed, (one.unsqueeze(0),), tie_weights=False)
        return loss(outputs, target.unsqueeze(0))

    each = vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in trained.items()}
    for at in range(0, len(targets), at_a_time):
        part = slice(at, at + at_a_time)
        found = each(trained, inputs[part], targets[part])
        of_each = (copies[n] * _squares(gradients) for n, gradients in found.items())
        squares = torch.stack(list(of_each)).sum(0)
        # A refusal, or NaN in the sum, would reveal such a record.
        sound = squares.isfinite()
        factors = torch.where(sound, max_norm / squares.sqrt().clamp(min=max_norm), 0)
        for name, gradients in found.items():
            clipped = torch.where(sound.view(-1, *(1,) * (gradients.dim() - 1)), gradients, 0)
            sums[name] += torch.tensordot(factors, clipped.double(), dims=1)
    return {
        name: sums[names[name]].to(value.dtype)
        if names[name] in sums
        else torch.zeros_like(value.detach())
        for name, value in state.items()
    }


def reply(
    message: Message, sums: Mapping[str, Tensor], *, max_norm: float, sampling: float
) -> Message:
    """Return an app's reply to `message`: `sums` of `clipped_gradients`, and their parameters.

    `max_norm` and `sampling` are the arguments of `clipped_gradients` and `poisson_batch`. The
    example count is 1, because the batch's own size would reveal data.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    content = RecordDict()
    content["arrays"] = ArrayRecord({name: tensor.cpu() for name, tensor in sums.items()})
    content["metrics"] = MetricRecord({"num-examples": 1})
    content[PROMISED] = ConfigRecord({"max-norm": float(max_norm), "sampling": float(sampling)})
    return Message(content, reply_to=message)

"""FedSGD in clear, with torch.optim itself: the baseline of encrypted FedSGD.

Flower's FedAvg averages nodes' gradients by their numbers of examples; the server steps. It shares
neither the average nor the rules with encrypted rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from flhe.strategies.plain import MeteredFedAvg
from flhe.training.optimizer import Optimizer

KINDS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}
RULES = ("lr", "momentum", "betas", "eps", "alpha")
"""Parameters that PyTorch's optimizers have under the same names."""


class PlainFedSGD(MeteredFedAvg):
    """FedSGD whose server steps with PyTorch's `optimizer`; `fedavg` is for `MeteredFedAvg`."""

    def __init__(self, optimizer: Optimizer, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        self._asked = optimizer
        self._model: dict[str, torch.Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the optimizer before the first round, then do as FedAvg does."""
        if not self._model:
            self._model = {n: torch.from_numpy(a.numpy().copy()) for n, a in arrays.items()}
            weights = [tensor for tensor in self._model.values() if tensor.is_floating_point()]
            found = {name: getattr(self._asked, name) for name in RULES}
            options = {name: value for name, value in found.items() if value is not None}
            self._optimizer = KINDS[self._asked.name](weights, **options)
            decay = self._asked.decay or 0.0
            self._rates = torch.optim.lr_scheduler.LambdaLR(
                self._optimizer, lambda steps: 1 / (1 + decay * steps)
            )
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients as FedAvg averages models, and step with the mean."""
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        for name, array in mean.items():
            tensor, value = self._model[name], array.numpy()
            if tensor.is_floating_point():
                tensor.grad = torch.from_numpy(value).to(tensor.dtype)
            else:  # a counter: nodes send its value after the batch
                tensor.copy_(torch.from_numpy(np.asarray(np.rint(value))))
        self._optimizer.step()
        self._rates.step()
        stepped = {name: Array(tensor.numpy().copy()) for name, tensor in self._model.items()}
        return ArrayRecord(stepped), metrics

"""Optimizers of both kinds: of mean updates, as a server's, and of mean gradients, as a client's.

They have one form: `name`, `takes` ("update" or "gradient"), `moments`, `init`, `step`, `parameters`
and `from_parameters`.
"""

from __future__ import annotations

from flhe.training import client_optimizer
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.optimizer import ServerOptimizer

Optimizer = ServerOptimizer | ClientOptimizer


def from_parameters(obj: object) -> Optimizer:
    """The optimizer whose `parameters` are `obj`; ProtocolError for anything else."""
    name = obj.get("name") if isinstance(obj, dict) else None
    if isinstance(name, str) and name in client_optimizer.DEFAULTS:
        return ClientOptimizer.from_parameters(obj)
    return ServerOptimizer.from_parameters(obj)


def of(optimizer: Optimizer | object | None) -> Optimizer:
    """What makes a step of a mean: one of ours, one of torch.optim's options, or FedAvg's sum."""
    if optimizer is None or isinstance(optimizer, Optimizer):
        return optimizer or ServerOptimizer()
    return ClientOptimizer.like(optimizer)

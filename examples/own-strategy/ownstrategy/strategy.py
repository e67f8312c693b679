"""MaskedFedAvg: FedAvg over one-time pads of a vector that is no longer than a seed.

A node sends `examples * weights` and `examples`, in units of 2**-20, plus its seed, modulo Q. The
server takes the sum of the seeds off the sum of these, and learns nothing else.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from flhe.math.ring import Q, add, subtract
from flhe.strategies import MaskingKeyAgreement

ONE = 1 << 20
RECORD = "masked"


def masked(weights: np.ndarray, examples: int, seed: np.ndarray) -> ArrayRecord:
    """Return what a node sends in place of its weights: uint64 (weights + 1,)."""
    plain = np.rint(np.append(weights, 1) * examples * ONE).astype(np.int64)
    if plain.size > seed.size or np.abs(plain).max() >= 1 << 50:
        raise ValueError(f"expected up to {seed.size - 1} weights and a sum below 2**30 of each")
    size = np.abs(plain).astype(np.uint64)
    elements = np.where(plain < 0, np.uint64(Q) - size, size)
    return ArrayRecord({"sum": Array(add(elements, seed[: plain.size]))})


class MaskedFedAvg(FedAvg):
    """FedAvg that adds pads; `keys` is also the grid that it is started with."""

    def __init__(self, keys: MaskingKeyAgreement, **options: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **options)
        self.keys = keys

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Add, have the survivors' seeds released, take their sum off, divide."""
        sums = {r.metadata.src_node_id: r.content[RECORD]["sum"].numpy() for r in replies}
        total = np.zeros_like(next(iter(sums.values())))
        for vector in sums.values():
            total = add(total, vector)
        plain = subtract(total, self.keys.release(sums)[: total.size])
        below = -(np.uint64(Q) - plain).astype(np.int64)  # of a negative sum
        values = np.where(plain > Q // 2, below, plain.astype(np.int64))
        mean = ArrayRecord({"w": Array(values[:-1] / values[-1])})
        return mean, MetricRecord({"examples": int(values[-1]) // ONE})

"""MaskedFedAvg: FedAvg over one-time pads of a model that is no longer than a seed.

A node sends  examples * weights | examples  as integers of 2**-20, plus its seed, modulo Q. The sum of
these, less the sum of the seeds, is all that the server learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flhe.math.ring import Q, add, subtract
from flhe.strategies import MaskingKeyAgreement

ONE = 1 << 20
RECORD = "masked"


def masked(
    arrays: Mapping[str, NDArray[Any]], examples: int, seed: NDArray[np.uint64]
) -> ArrayRecord:
    """What a node sends in place of its model, shape (weights + 1,)."""
    flat = np.concatenate([np.ravel(array) for array in arrays.values()]).astype(np.float64)
    plain = np.append(np.rint(flat * examples * ONE).astype(np.int64), examples)
    if plain.size > seed.size or np.abs(plain).max() >= 1 << 50:
        raise ValueError(
            "more weights than a seed has elements, or larger ones than it has room for"
        )
    size = np.abs(plain).astype(np.uint64)
    elements = np.where(plain < 0, np.uint64(Q) - size, size)
    return ArrayRecord({"sum": Array(add(elements, seed[: plain.size]))})


class MaskedFedAvg(FedAvg):
    """FedAvg that adds pads; `keys` is also the grid that it is started with."""

    def __init__(self, keys: MaskingKeyAgreement, model: ArrayRecord, **options: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **options)
        self.keys = keys
        self.shapes = {name: array.shape for name, array in model.items()}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add, have the survivors' seeds released, take their sum off, divide."""
        sums = {
            r.metadata.src_node_id: r.content.array_records[RECORD]["sum"].numpy() for r in replies
        }
        total = np.zeros_like(next(iter(sums.values())))
        for vector in sums.values():
            total = add(total, vector)
        plain = subtract(total, self.keys.release(sums)[: total.size])
        below = -(np.uint64(Q) - plain).astype(np.int64)  # of a negative sum
        values = np.where(plain > Q // 2, below, plain.astype(np.int64))
        mean, at, arrays = values[:-1] / ONE / values[-1], 0, {}
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            arrays[name] = Array(mean[at : at + size].reshape(shape))
            at += size
        return ArrayRecord(arrays), MetricRecord({"examples": int(values[-1])})

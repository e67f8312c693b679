"""What nodes train, and what FedAvg makes of it in the clear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.training.model import Model

Arrays = dict[str, NDArray[Any]]

COUNTS = (40, 10, 25, 60, 5, 33)
"""Example counts of the nodes, by partition id."""

MAX = 64
WEIGHTS: dict[int, float] = dict(enumerate(COUNTS))
EQUAL: dict[int, float] = dict.fromkeys(range(6), 1)
RATE = 0.25


def start_arrays() -> Arrays:
    """The model that training starts from."""
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(0, 0.5, (9, 7)).astype(np.float32),
        "scale": np.array(0.5, np.float32),
        "half": np.array([0.25, -0.5], np.float16),
        "double": np.array([[1.5]], np.float64),
        "steps": np.array(3, np.int64),
        "seen": np.array([7, 0], np.int32),
        "empty": np.empty((0, 3), np.float32),
    }


def places(array: NDArray[Any], partition: int, i: int) -> NDArray[Any]:
    """Where a node would like to have the `i`-th array."""
    return np.cos(np.arange(array.size) + 3 * partition + i).reshape(array.shape)


def trained(arrays: Mapping[str, NDArray[Any]], partition: int) -> Arrays:
    """What a node makes of a model: a step towards a place of its own."""
    out: Arrays = {}
    for i, (name, array) in enumerate(arrays.items()):
        if array.dtype.kind == "f":
            wide = array.astype(np.float64)
            place = places(array, partition, i)
            out[name] = np.asarray(wide + RATE * (place - wide), array.dtype)
        else:
            out[name] = np.asarray(array + 1 + partition, array.dtype)
    return out


class Reference:
    """Flower's FedAvg in float64, integers by the weighted mean of their changes."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self.weights = weights
        self.arrays: Arrays = start_arrays()
        self.masters: Arrays = {
            n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in self.arrays.items()
        }

    @classmethod
    def of(
        cls, rounds: Iterable[Iterable[int]], weights: Mapping[int, float] = WEIGHTS
    ) -> Reference:
        made = cls(weights)
        for partitions in rounds:
            made.round(partitions)
        return made

    def round(self, partitions: Iterable[int]) -> None:
        present = list(partitions)
        weight = sum(self.weights[p] for p in present)
        after = {p: trained(self.arrays, p) for p in present}
        for name, old in self.masters.items():
            changes = [self.weights[p] * (after[p][name] - old) for p in present]
            mean = sum(changes) / weight
            if old.dtype.kind == "f":
                self.masters[name] = np.asarray(old + mean)
            else:
                self.masters[name] = np.asarray(old + np.floor(mean + 0.5), old.dtype)
        self.arrays = {n: np.asarray(a, start_arrays()[n].dtype) for n, a in self.masters.items()}


def tolerance(
    partitions: Sequence[int], rounds: int, weighted: bool = True, bits: int = 16
) -> float:
    """One quantization step a client, in units of the weighted mean, for each round."""
    weight = sum(COUNTS[p] for p in partitions) / MAX if weighted else len(partitions)
    step: float = 1 / (2 ** (bits - 1) - 1)
    return rounds * (len(partitions) * step / weight) + 1e-5


def close(model: Model, reference: Reference, atol: float) -> None:
    """The model is the reference's, its masters that is."""
    for name, expected in reference.masters.items():
        got = model.masters[name]
        assert got.shape == expected.shape
        if expected.dtype.kind == "f":
            slack = 1e-3 if name == "half" else 0.0
            np.testing.assert_allclose(got, expected, atol=atol + slack, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=name)


def assert_like(arrays: Mapping[str, Any], reference: Reference, atol: float) -> None:
    """So are these arrays, in the types that travel."""
    for name, expected in reference.arrays.items():
        slack = 2e-3 if name == "half" else atol
        got = np.asarray(arrays[name], np.float64)
        wide = np.asarray(expected, np.float64)
        np.testing.assert_allclose(got, wide, rtol=0, atol=slack, err_msg=name)

"""Split a data set over the nodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import Data

MIN_PARTITION = 10
"""Fewest training examples of a node under a Dirichlet split."""


def split_iid(labels: NDArray[np.int64], nodes: int, seed: int) -> list[NDArray[np.int64]]:
    """Split the indices of `labels` evenly, after a shuffle; sizes differ by one at most."""
    _enough(len(labels), nodes)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), nodes)


def split_dirichlet(
    labels: NDArray[np.int64], nodes: int, seed: int, alpha: float
) -> list[NDArray[np.int64]]:
    """Split the indices of `labels` so that each class follows Dirichlet(alpha) over the nodes."""
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    if labels.ndim > 1:
        raise ConfigError(
            'partition="dirichlet" splits by the label of an example, and text has one at every '
            'position: use partition="iid"'
        )
    _enough(len(labels), nodes * MIN_PARTITION)
    partitioner = DirichletPartitioner(
        num_partitions=nodes,
        partition_by="label",
        alpha=alpha,
        min_partition_size=MIN_PARTITION,
        self_balancing=True,
        seed=seed,
    )
    partitioner.dataset = Dataset.from_dict({"index": np.arange(len(labels)), "label": labels})
    try:
        parts = (partitioner.load_partition(node)["index"] for node in range(nodes))
        return [np.asarray(indices, dtype=np.int64) for indices in parts]
    except ValueError as error:
        raise ConfigError(
            f"dirichlet-alpha={alpha} leaves one of {nodes} nodes fewer than {MIN_PARTITION} "
            "examples: raise it, or use fewer nodes"
        ) from error


def node_data(settings: Settings, partition_id: int, partitions: int) -> Data:
    """Return a node's part of the training set, and its share of the test set."""
    if not 0 <= partition_id < partitions:
        raise ConfigError(
            f"partition-id={partition_id} of num-partitions={partitions}: "
            "give each node its own, from 0"
        )
    data, train_parts, test_parts = _partitioned(settings, partitions)
    return Data(
        data.train.take(train_parts[partition_id]), data.test.take(test_parts[partition_id])
    )


@lru_cache(maxsize=1)  # a simulated node's process serves many nodes and rounds
def _partitioned(
    settings: Settings, nodes: int
) -> tuple[Data, list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    data = task_named(settings.task).load(settings.data_dir, download=settings.download)
    labels, seed = data.train.labels.numpy(), settings.seed
    if settings.partition == "iid":
        train_parts = split_iid(labels, nodes, seed)
    else:
        train_parts = split_dirichlet(labels, nodes, seed, settings.dirichlet_alpha)
    return data, train_parts, split_iid(data.test.labels.numpy(), nodes, seed)


def _enough(count: int, needed: int) -> None:
    if count < needed:
        raise ConfigError(f"{count} examples for a split that needs {needed}: use fewer nodes")

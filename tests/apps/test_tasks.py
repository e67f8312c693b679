"""Tasks: who holds what, and that training depends on its seeds alone."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from flhe.errors import ConfigError
from flhe_app.settings import TASKS, Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import evaluate, new_model, shuffler, train
from flhe_app.tasks.split import MIN_PARTITION, node_data, split_dirichlet, split_iid

LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_model_that_its_seed_decides(name: str) -> None:
    task = task_named(name)
    assert task.name == name
    before = torch.random.get_rng_state()
    one, same, other = (new_model(task, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


def test_iid_split_is_even_disjoint_and_seeded() -> None:
    parts = split_iid(LABELS, 7, seed=3)
    assert {len(part) for part in parts} == {142, 143}
    assert sorted(np.concatenate(parts)) == list(range(1000))
    again, other = split_iid(LABELS, 7, seed=3), split_iid(LABELS, 7, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not np.array_equal(parts[0], other[0])


def test_dirichlet_split_is_uneven_disjoint_and_seeded() -> None:
    parts = split_dirichlet(LABELS, 5, seed=3, alpha=0.3)
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert min(map(len, parts)) >= MIN_PARTITION
    assert len(set(map(len, parts))) > 2
    again = split_dirichlet(LABELS, 5, seed=3, alpha=0.3)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_a_split_too_fine_is_refused() -> None:
    with pytest.raises(ConfigError, match="use fewer nodes"):
        split_iid(LABELS[:3], 4, seed=0)
    with pytest.raises(ConfigError, match="use fewer nodes"):
        split_dirichlet(LABELS[:20], 4, seed=0, alpha=1.0)


def test_digits_nodes_share_nothing_and_the_test_set_is_common() -> None:
    settings = Settings()
    parts = [node_data(settings, node, 5) for node in range(5)]
    assert sum(len(part.train.labels) for part in parts) == task_named("digits").train_size
    assert [len(part.test.labels) for part in parts] == [72] * 5
    labels = torch.cat([part.test.labels for part in parts])
    assert labels.bincount().min() >= 34  # stratified: 360 over ten classes
    assert parts[0].train.images.shape[1:] == (1, 8, 8)
    assert 0 <= parts[0].train.images.min() < parts[0].train.images.max() <= 1


def test_partition_id_outside() -> None:
    with pytest.raises(ConfigError, match="partition-id=5 of num-partitions=5"):
        node_data(Settings(), 5, 5)


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_missing_data_set_says_where_to_put_it(name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"put .* into a directory .* --data-dir"):
        task_named(name).load("", download=False)
    with pytest.raises(ConfigError, match=r"name the directory with --data-dir.*download=true"):
        task_named(name).load(str(tmp_path), download=False)
    assert not list(tmp_path.iterdir())


def test_batches_depend_on_seed_partition_and_round() -> None:
    def order(*key: int) -> list[int]:
        drawn: list[int] = torch.randperm(50, generator=shuffler(*key)).tolist()
        return drawn

    assert order(0, 1, 2) == order(0, 1, 2)
    assert len({tuple(order(*key)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}) == 4


def test_plain_fedavg_reaches_the_bar() -> None:
    settings, task, seed = Settings(), task_named("digits"), 0
    model = new_model(task, seed)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    parts = [node_data(settings, node, 5) for node in range(5)]
    count = sum(len(part.train.labels) for part in parts)
    for server_round in range(1, 6):
        total = {key: torch.zeros_like(value) for key, value in weights.items()}
        for node, part in enumerate(parts):
            model.load_state_dict(weights)
            train(
                model,
                part.train,
                epochs=settings.local_epochs,
                learning_rate=settings.learning_rate,
                batch_size=settings.batch_size,
                shuffle=shuffler(seed, node, server_round),
            )
            for key, value in model.state_dict().items():
                total[key] += value * (len(part.train.labels) / count)
        weights = total
    model.load_state_dict(weights)
    assert np.mean([evaluate(model, part.test).accuracy for part in parts]) >= 0.95


def _sample(path: pathlib.Path, **changed: np.ndarray) -> pathlib.Path:
    rng = np.random.default_rng(1)
    arrays = {
        "x_train": rng.integers(0, 256, (12, 32, 32, 3)).astype(np.uint8),
        "y_train": np.arange(12) % 10,
        "x_test": rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8),
        "y_test": np.arange(4),
    }
    np.savez(path, allow_pickle=False, **{**arrays, **changed})
    return path


def test_a_sample_in_one_file(tmp_path: pathlib.Path) -> None:
    path = _sample(tmp_path / "sample.npz")
    data = task_named("cifar10").load(str(path), download=False)
    assert tuple(data.train.images.shape) == (12, 3, 32, 32)
    assert tuple(data.test.images.shape) == (4, 3, 32, 32)
    with np.load(path) as file:
        first = file["x_train"][0].transpose(2, 0, 1) / 255 * 2 - 1
        assert np.allclose(data.train.images[0].numpy(), first, atol=1e-6)
        assert data.train.labels.tolist() == file["y_train"].tolist()


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.zeros((12, 28, 28), np.uint8)},
        {"x_train": np.zeros((12, 32, 32, 3), np.float32)},
        {"y_test": np.zeros(3, np.int64)},
        {"y_train": np.array([{}] * 12)},
    ],
    ids=["shape", "type", "labels", "pickle"],
)
def test_a_file_that_holds_something_else(tmp_path: pathlib.Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "sample.npz"
    if changed.get("y_train") is not None:
        np.savez(path, allow_pickle=True, **changed)
    else:
        _sample(path, **changed)
    with pytest.raises(ConfigError, match=r"sample\.npz"):
        task_named("cifar10").load(str(path), download=False)

"""The client's training code, called as a mod would call it: ordinary arrays in and out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.mods import records
from flhe_app import client_app
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import batch_gradient, evaluate, new_model, shuffler
from flhe_app.tasks.split import node_data


def context(partition: int, **config: object) -> Context:
    settings = {"scheme": "plain", "local-epochs": 1, **config}
    node = {"partition-id": partition, "num-partitions": 5}
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=settings)


def message(kind: str, arrays: ArrayRecord, server_round: int = 1) -> Message:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    config = ConfigRecord({"server-round": server_round})
    record = RecordDict({"arrays": arrays, "config": config})
    return Message(record, message_type=kind, dst_node_id=2)


@pytest.fixture
def arrays() -> ArrayRecord:
    return ArrayRecord(new_model(task_named("digits"), Settings().seed).state_dict())


def test_training_depends_on_seed_partition_and_round_alone(arrays: ArrayRecord) -> None:
    start = arrays.to_torch_state_dict()

    def moved(partition: int = 0, server_round: int = 1, mu: float = 0.0) -> torch.Tensor:
        here = context(partition, **{"proximal-mu": mu})
        reply = client_app.train_fn(message("train", arrays, server_round), here)
        state, metrics = reply.content["arrays"].to_torch_state_dict(), reply.content["metrics"]
        assert {key: array.shape for key, array in state.items()} == {
            key: array.shape for key, array in start.items()
        }
        assert set(metrics) == {"train_loss", "train_accuracy", "num-examples"}
        assert metrics["num-examples"] == (288 if partition == 0 else 287)
        return state["0.weight"] - start["0.weight"]

    torch.manual_seed(1)
    first = moved()
    torch.manual_seed(2)
    assert torch.equal(first, moved())
    assert not torch.equal(first, moved(server_round=2))
    assert not torch.equal(first, moved(partition=2))
    # A proximal term keeps training close
    assert moved(mu=5.0).norm() < moved(mu=1.0).norm() < first.norm()


def test_evaluation_returns_metrics_alone(arrays: ArrayRecord) -> None:
    reply = client_app.evaluate_fn(message("evaluate", arrays), context(1))
    assert not reply.content.array_records
    metrics = reply.content["metrics"]
    assert set(metrics) == {"loss", "accuracy", "num-examples"}
    assert metrics["num-examples"] == 72
    assert 0 <= metrics["accuracy"] <= 1


def test_q_fedavg_takes_the_loss_of_the_received_model(arrays: ArrayRecord) -> None:
    plain = client_app.train_fn(message("train", arrays), context(0))
    config = {"fair-q": 1.0}
    reply = client_app.train_fn(message("train", arrays), context(0, **config))
    settings = Settings(scheme="plain", local_epochs=1, fair_q=1.0)
    model = new_model(task_named("digits"), 0)
    loss = evaluate(model, node_data(settings, 0, 5).train).loss
    assert settings.fair is not None
    expected, weight = settings.fair.contribution(
        records.to_numpy(arrays), records.to_numpy(plain.content["arrays"]), loss
    )
    found = records.to_numpy(reply.content["arrays"])
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    metrics = reply.content["metrics"]
    assert metrics["num-examples"] == weight != 288
    assert metrics["train_loss"] == plain.content["metrics"]["train_loss"]


def test_under_fedsgd_a_node_answers_with_its_gradient(arrays: ArrayRecord) -> None:
    config = {"scheme": "flashe", "local-epochs": 5, "batch-size": 16, "algorithm": "fedsgd"}
    reply = client_app.train_fn(message("train", arrays, 4), context(1, **config))
    data = node_data(Settings(), 1, 5)
    model, shuffle = new_model(task_named("digits"), 0), shuffler(0, 1, 4)
    expected = batch_gradient(model, data.train, batch_size=16, shuffle=shuffle)
    sent = reply.content["arrays"].to_torch_state_dict()
    assert list(sent) == list(expected.arrays)
    assert all(torch.equal(sent[name], array) for name, array in expected.arrays.items())
    assert dict(reply.content["metrics"]) == {
        "train_loss": expected.score.loss,
        "train_accuracy": expected.score.accuracy,
        "num-examples": 16,
    }

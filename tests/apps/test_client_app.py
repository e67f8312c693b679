"""The client's training code, called as a mod would call it: ordinary arrays in and out."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.apps import client_app
from flhe.apps.settings import Settings
from flhe.apps.tasks import task_named
from flhe.apps.tasks.base import new_model


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


def test_train_returns_the_model_and_its_metrics(arrays: ArrayRecord) -> None:
    reply = client_app.train_fn(message("train", arrays), context(0))
    state, start = reply.content["arrays"].to_torch_state_dict(), arrays.to_torch_state_dict()
    assert list(state) == list(start)
    assert all(state[key].shape == start[key].shape for key in start)
    assert not torch.equal(state["0.weight"], start["0.weight"])
    metrics = reply.content["metrics"]
    assert set(metrics) == {"train_loss", "train_accuracy", "num-examples"}
    assert metrics["num-examples"] == 288


def test_train_depends_on_seed_partition_and_round_alone(arrays: ArrayRecord) -> None:
    def weight(partition: int, server_round: int) -> torch.Tensor:
        reply = client_app.train_fn(message("train", arrays, server_round), context(partition))
        return reply.content["arrays"].to_torch_state_dict()["0.weight"]

    torch.manual_seed(1)
    first = weight(0, 1)
    torch.manual_seed(2)
    assert torch.equal(first, weight(0, 1))
    assert not torch.equal(first, weight(0, 2))
    assert not torch.equal(first, weight(1, 1))


def test_evaluate_returns_metrics_alone(arrays: ArrayRecord) -> None:
    reply = client_app.evaluate_fn(message("evaluate", arrays), context(1))
    assert not reply.content.array_records
    metrics = reply.content["metrics"]
    assert set(metrics) == {"loss", "accuracy", "num-examples"}
    assert metrics["num-examples"] == 72
    assert 0 <= metrics["accuracy"] <= 1

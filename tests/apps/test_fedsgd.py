"""FedSGD with the real app: gradients out of batches, and encrypted runs that end where torch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from flhe.errors import ConfigError
from flhe.mods import records
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.report import Reporter
from flhe.testing import InProcessGrid
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.model import Model
from flhe.training.optimizer import ServerOptimizer
from flhe_app import client_app, server_app
from flhe_app.plain_fedsgd import PlainFedSGD
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import Examples, new_model, shuffler
from flhe_app.tasks.gradients import batch_gradient
from flhe_app.tasks.split import node_data

NODES = 3
TASK = task_named("digits")
FEDSGD: dict[str, Any] = {"algorithm": "fedsgd", "nodes": NODES}


# --- the run config ---


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"algorithm": "sgd"}, "algorithm='sgd' is unknown; use one of fedavg, fedsgd"),
        ({"client-optimizer": "adam"}, "client-optimizer=.* has no effect with algorithm='fedavg'"),
        ({"client-lr": 0.1}, "client-lr=.* has no effect with algorithm='fedavg'"),
        ({"client-momentum": 0.9}, "client-momentum=.* has no effect with algorithm='fedavg'"),
        ({"client-decay": 0.1}, "client-decay=.* has no effect with algorithm='fedavg'"),
        ({**FEDSGD, "client-optimizer": "adamw"}, "'adamw' is unknown; use one of sgd, adam"),
        ({**FEDSGD, "client-lr": -0.1}, "client-lr=-0.1: must be finite and 0 or more"),
        ({**FEDSGD, "client-decay": float("nan")}, "client-decay=nan"),
        ({**FEDSGD, "client-momentum": 0.9}, "client-momentum=0.9: .*adam has no momentum"),
        (
            {**FEDSGD, "client-optimizer": "sgd", "client-momentum": 1.0},
            "client-momentum=1.0: .*less than 1",
        ),
        (
            {**FEDSGD, "server-optimizer": "fedadam"},
            "server-optimizer=.* has no effect with algorithm='fedsgd'",
        ),
        ({**FEDSGD, "proximal-mu": 0.1}, "proximal-mu=.* has no effect with algorithm='fedsgd'"),
        ({**FEDSGD, "fair-q": 0.1}, "fair-q=.* has no effect with algorithm='fedsgd'"),
        ({**FEDSGD, "top-k": 0.1}, "with the sum of all gradients; leave top-k out"),
        ({**FEDSGD, "scheme": "sash"}, "use unmask='clients'"),
    ],
    ids=str,
)
def test_refuses(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_config(config)


def test_the_optimizer_of_the_run_config() -> None:
    assert Settings().optimizer == ServerOptimizer()
    assert Settings(**FEDSGD).optimizer == ClientOptimizer("adam")
    settings = Settings(
        **FEDSGD, client_optimizer="rmsprop", client_lr=0.1, client_momentum=0.5, client_decay=1e-6
    )
    assert settings.optimizer == ClientOptimizer("rmsprop", lr=0.1, momentum=0.5, decay=1e-6)


# --- the gradient of a batch ---


class Buffered(nn.Module):
    """A model with all that a state may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 3)
        self.tied = self.head
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of three classes."""
        out: torch.Tensor = self.head(self.norm(x))
        return out


def some(count: int) -> Examples:
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (count,), generator=draw)
    return Examples(torch.randn(count, 2, generator=draw), labels)


def test_every_array_of_the_state_has_its_place() -> None:
    torch.manual_seed(1)
    model = Buffered()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = batch_gradient(model, some(50), batch_size=8, shuffle=shuffler(0, 0, 1))
    assert found.examples == 8
    assert list(found.arrays) == list(before)
    for name, value in before.items():
        assert (found.arrays[name].shape, found.arrays[name].dtype) == (value.shape, value.dtype)
        if name != "norm.num_batches_tracked" and "running" not in name:
            assert torch.equal(model.state_dict()[name], value)  # nothing has stepped
    assert found.arrays["norm.num_batches_tracked"] == 1
    for name in ("norm.running_mean", "norm.running_var", "frozen", "unused"):
        assert not found.arrays[name].any()
    assert torch.equal(found.arrays["tied.weight"], found.arrays["head.weight"])
    for name in ("head.weight", "head.bias", "norm.weight"):
        assert found.arrays[name].any()


def test_it_is_the_mean_gradient_of_its_batch_and_of_no_other() -> None:
    examples = some(50)

    def found(partition: int, round_: int, size: int = 8) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3))
        shuffle = shuffler(3, partition, round_)
        return batch_gradient(model, examples, batch_size=size, shuffle=shuffle).arrays["0.weight"]

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3))
    order = torch.randperm(50, generator=shuffler(3, 0, 1))[:8]
    share = torch.softmax(model(examples.images[order]), 1).detach()
    share[torch.arange(8), examples.labels[order]] -= 1  # of cross entropy, by hand
    assert torch.allclose(found(0, 1), share.T @ examples.images[order] / 8, atol=1e-6)
    assert torch.equal(found(0, 1), found(0, 1))
    assert not torch.equal(found(0, 1), found(0, 2))
    assert not torch.equal(found(0, 1), found(1, 1))
    whole = batch_gradient(model, examples, batch_size=999, shuffle=shuffler(3, 0, 1))
    assert whole.examples == 50
    loss = functional.cross_entropy(model(examples.images), examples.labels)
    assert whole.score.loss == pytest.approx(loss.item(), rel=1e-5)
    correct = (model(examples.images).argmax(1) == examples.labels).sum() / 50
    assert whole.score.accuracy == pytest.approx(correct.item())


def test_a_node_answers_with_its_gradient() -> None:
    config = {"scheme": "plain", "batch-size": 16, **FEDSGD}
    node = {"partition-id": 1, "num-partitions": NODES}
    ctx = Context(1, 2, node, RecordDict(), config)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    arrays = ArrayRecord(new_model(TASK, 0).state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 4})})
    reply = client_app.train_fn(Message(content, message_type="train", dst_node_id=2), ctx)
    data = node_data(Settings.from_config(config), 1, NODES)
    expected = batch_gradient(
        new_model(TASK, 0), data.train, batch_size=16, shuffle=shuffler(0, 1, 4)
    )
    sent = reply.content["arrays"].to_torch_state_dict()
    assert list(sent) == list(expected.arrays)
    assert all(torch.equal(sent[name], array) for name, array in expected.arrays.items())
    metrics = reply.content["metrics"]
    assert dict(metrics) == {
        "train_loss": expected.score.loss,
        "train_accuracy": expected.score.accuracy,
        "num-examples": 16,
    }


# --- the strategies ---


def strategy(**config: Any) -> Any:
    return server_app.make_strategy(Settings(**FEDSGD, **config), TASK, Reporter(None))


def test_strategies() -> None:
    assert type(strategy(scheme="plain")) is PlainFedSGD
    schemes = {"flashe": {}, "sash": {"unmask": "clients"}, "batchcrypt": {}, "esafl": {}}
    for scheme, own in schemes.items():
        made = strategy(scheme=scheme, client_lr=0.5, batch_size=20, clip=0.25, **own)
        assert isinstance(made, HEStrategy)
        terms = made.terms
        assert (terms.scheme, terms.sends, terms.clip) == (scheme, "gradient", 0.25)
        assert terms.optimizer == ClientOptimizer("adam", lr=0.5)
        assert terms.max_examples == 20  # a batch, and not all that a node holds
    made = strategy(scheme="batchcrypt", key_bits=2048, advance=True)
    assert (made.terms.key_bits, made.terms.advance) == (2048, True)
    assert strategy(masking="single").terms.masking == "single"
    assert strategy(max_examples=99).terms.max_examples == 99
    assert strategy(batch_size=10_000).terms.max_examples == 479


class Nodes(Grid):
    """A grid of three nodes that are never asked."""

    run = None
    set_run = create_message = push_messages = pull_messages = send_and_receive = None

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3]


def test_the_baseline_steps_with_the_mean_by_examples() -> None:
    """SGD with momentum by hand; integers are counters."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    options = {"lr": 0.5, "momentum": 0.5, "decay": 1.0}
    baseline = PlainFedSGD(ClientOptimizer("sgd", **options))  # type: ignore[arg-type]
    weights = {"w": np.ones(2, np.float32), "n": np.array(7, np.int64)}
    arrays = ArrayRecord({name: Array(array) for name, array in weights.items()})
    model, buffer = np.ones(2), np.zeros(2)
    for round_ in (1, 2, 3):
        asked = baseline.configure_train(round_, arrays, ConfigRecord(), Nodes())
        replies = []
        for node, message in enumerate(asked):
            sent = {"w": np.array([node, 2.0], np.float32), "n": np.array(7 + round_, np.int64)}
            content = {
                "arrays": ArrayRecord({name: Array(array) for name, array in sent.items()}),
                "metrics": MetricRecord({"num-examples": node + 1}),
            }
            replies.append(Message(RecordDict(content), reply_to=message))
        found, _ = baseline.aggregate_train(round_, replies)
        assert found is not None
        arrays = found
        mean = np.array([(0 * 1 + 1 * 2 + 2 * 3) / 6, 2.0])
        buffer = mean if round_ == 1 else 0.5 * buffer + mean
        model = model - 0.5 / round_ * buffer  # lr / (1 + decay * (step - 1))
        assert arrays["w"].numpy() == pytest.approx(model, rel=1e-6)
        assert (arrays["n"].numpy(), arrays["n"].dtype) == (7 + round_, "int64")


# --- whole runs ---


def federate(tmp: Path, scheme: str, **config: Any) -> list[NDArray[np.float32]]:
    """The model at the end, flat: of the server in a plain run, of every node in an encrypted one."""
    settings = Settings(scheme=scheme, **FEDSGD, **config)
    homes = [tmp / scheme / f"node-{i}" for i in range(NODES)]
    grid = InProcessGrid(
        client_app.app,
        NODES,
        run_config=settings.to_config(),
        node_config=lambda i: {
            "flhe-home": str(homes[i]),
            "flhe-trust": "first-use",
            "flhe-schemes": scheme,
            "flhe-key-bits": 2048,
        },
    )
    made = server_app.make_strategy(settings, TASK, Reporter(None))
    initial = ArrayRecord(new_model(TASK, settings.seed).state_dict())
    rounds = settings.num_rounds
    result = made.start(grid=grid, initial_arrays=initial, num_rounds=rounds, timeout=120)
    grid.close()
    if scheme == "plain":
        return [flat(records.to_numpy(result.arrays))]
    files = [next(home.glob("runs/*/model")) for home in homes]
    models = [Model.from_bytes(file.read_bytes()) for file in files]
    assert {model.steps for model in models} == {rounds}
    return [flat(model.masters) for model in models]


def flat(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)


@pytest.mark.parametrize(
    ("scheme", "config", "tolerance"),
    [
        ("flashe", {"client_optimizer": "sgd", "client_lr": 0.1, "client_momentum": 0.9}, 0.01),
        ("flashe", {"client_optimizer": "adam", "client_lr": 0.003, "bits": 32}, 1e-3),
        (
            "flashe",
            {"client_optimizer": "rmsprop", "client_lr": 0.001, "client_decay": 0.1, "bits": 32},
            1e-3,
        ),
        # The fitted thresholds clip some of it, by design.
        ("flashe", {"client_optimizer": "sgd", "client_lr": 0.1, "clipping": "exchange"}, 0.1),
        ("batchcrypt", {"client_lr": 0.003, "bits": 32, "key_bits": 2048}, 1e-3),
        ("esafl", {"client_lr": 0.003, "bits": 32}, 1e-3),
    ],
    ids=str,
)
def test_encrypted_ends_where_torch_does(
    scheme: str, config: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    """Fine steps: Adam and RMSprop move a weight as far for a tiny gradient, and for what rounding
    makes of it, as for a large one."""
    plain_config = {k: v for k, v in config.items() if k.startswith("client")}
    (plain,) = federate(tmp_path, "plain", num_rounds=4, **plain_config)
    sealed = federate(tmp_path, scheme, num_rounds=4, **config)
    assert all(model.tobytes() == sealed[0].tobytes() for model in sealed)  # on every node
    start = flat({n: t.numpy() for n, t in new_model(TASK, 0).state_dict().items()})
    assert np.linalg.norm(sealed[0] - plain) < tolerance * np.linalg.norm(plain - start)

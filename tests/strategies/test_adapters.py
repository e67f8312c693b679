"""Parameter-efficient training under selection: low-rank adapters are a small model like any other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional

from flhe.coding.select import Select
from flhe.coding.sensitivity import sensitivity
from flhe.mods import HEMod, records
from flhe.strategies import esafl_fedavg, fedml_he_fedavg, flashe_fedavg
from tests.strategies.puppets import Puppets, same

pytestmark = pytest.mark.usefixtures("quick")

WIDE, RANK, NODES, ROUNDS = 32, 2, 3, 2


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it (LoRA, Hu et al., 2021)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.up(self.down(x))
        return found


def network() -> nn.Module:
    """The same for all; its frozen weights are on every node's disk, and never travel."""
    torch.manual_seed(5)
    return nn.Sequential(Adapted(nn.Linear(WIDE, WIDE)), nn.Tanh(), Adapted(nn.Linear(WIDE, 4)))


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """What is trained and travels."""
    return {n: t for n, t in model.state_dict().items() if ".base." not in n}


def data(partition: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(partition)
    x = torch.randn(40, WIDE, generator=generator)
    return x, (x[:, :4] + 0.1 * partition).argmax(1)


def trained(state: dict[str, Tensor], partition: int) -> dict[str, Tensor]:
    model = network()
    model.load_state_dict(state, strict=False)
    moved = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(moved, lr=0.2)
    x, y = data(partition)
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {n: t.detach().clone() for n, t in adapters(model).items()}


def own_map(message: Message, context: Context) -> dict[str, Tensor]:
    model = network()
    received = message.content.array_records["arrays"].to_torch_state_dict()
    model.load_state_dict(received, strict=False)
    x, y = data(int(context.node_config["partition-id"]))
    return sensitivity(model, functional.cross_entropy, [(x, y)])


def app() -> ClientApp:
    client = ClientApp(mods=[HEMod(sensitivity=own_map)])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        received: Any = message.content.array_records["arrays"].to_torch_state_dict()
        assert all(".base." not in name for name in received)
        made = trained(received, int(context.node_config["partition-id"]))
        told = MetricRecord({"num-examples": 40, "train_loss": 0.0})
        return Message(RecordDict({"arrays": ArrayRecord(made), "metrics": told}), reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"loss": 0.0, "num-examples": 1})}),
            reply_to=message,
        )

    return client


def fedavg() -> dict[str, np.ndarray[Any, Any]]:
    state = adapters(network())
    for _ in range(ROUNDS):
        made = [trained(copy.deepcopy(state), p) for p in range(NODES)]
        state = {n: torch.stack([m[n].double() for m in made]).mean(0).float() for n in state}
    return {n: t.numpy() for n, t in state.items()}


@pytest.mark.parametrize(
    ("make", "select"),
    [
        (fedml_he_fedavg, Select()),
        (fedml_he_fedavg, Select(0.25)),
        (flashe_fedavg, Select(0.25)),
        (esafl_fedavg, Select(0.25, rest="drop")),
    ],
)
def test_adapters_are_a_model_like_any_other(make: Any, select: Select, tmp_path: Path) -> None:
    allow = {"flhe-min-select": 0.25}
    grid = Puppets(tmp_path, NODES, app(), config=lambda _: allow)
    start = adapters(network())
    how: dict[str, Any] = {"weighted": False, "select": select}
    make(**how).start(grid, ArrayRecord(start), num_rounds=ROUNDS)
    grid.close()
    model = same(grid, range(NODES))
    assert list(model.masters) == list(start)
    assert model.layout.floats == sum(t.numel() for t in start.values()) == 200
    expected = fedavg()
    if select.rest == "clear":
        for name, array in model.masters.items():
            assert np.abs(array - expected[name]).max() < 1e-3, name
        return
    assert model.mask is not None
    assert model.mask.count == 50
    moved = np.concatenate([(model.masters[n] - start[n].numpy()).reshape(-1) for n in start])
    assert set(np.flatnonzero(moved).tolist()) <= set(model.mask.coords.tolist())
    assert np.count_nonzero(moved) > 30


def test_what_travels_is_the_adapters_alone(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES, app())
    flashe_fedavg(weighted=False).start(grid, ArrayRecord(adapters(network())), num_rounds=1)
    grid.close()
    sizes = [
        records.message_bytes(reply.content) for _, stage, reply in grid.replies if stage == "round"
    ]
    assert len(sizes) == NODES
    assert max(sizes) < 4 * 200 + 1500 < 4 * sum(p.numel() for p in network().parameters())

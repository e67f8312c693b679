"""Parameter-efficient training under selection: low-rank adapters are a small model like any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from flhe.coding.select import Select
from flhe.coding.sensitivity import sensitivity
from flhe.mods import HEMod, records
from flhe.strategies import EsaflFedAvg, FedmlHeFedAvg, FlasheFedAvg
from tests.strategies.puppets import Node, Puppets, play, same

pytestmark = pytest.mark.usefixtures("quick")

WIDE, RANK, NODES, ROUNDS = 32, 2, 3, 2
Arrays = Mapping[str, NDArray[Any]]


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


def network(arrays: Arrays) -> nn.Module:
    """The same for all; its frozen weights are on every node's disk, and never travel."""
    torch.manual_seed(5)
    layers = Adapted(nn.Linear(WIDE, WIDE)), nn.Tanh(), Adapted(nn.Linear(WIDE, 4))
    model = nn.Sequential(*layers)
    missing, _ = model.load_state_dict(
        {n: torch.tensor(a) for n, a in arrays.items()}, strict=False
    )
    assert not arrays or all(".base." in name for name in missing)
    return model


def adapters(model: nn.Module) -> dict[str, NDArray[Any]]:
    """What is trained and travels."""
    return {n: t.numpy().copy() for n, t in model.state_dict().items() if ".base." not in n}


def data(partition: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(partition)
    x = torch.randn(40, WIDE, generator=generator)
    return x, (x[:, :4] + 0.1 * partition).argmax(1)


def trained(arrays: Arrays, partition: int) -> dict[str, NDArray[Any]]:
    model, (x, y) = network(arrays), data(partition)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return adapters(model)


def own_map(message: Message, context: Context) -> dict[str, Tensor]:
    model = network(records.to_numpy(message.content["arrays"]))
    return sensitivity(model, functional.cross_entropy, [data(context.node_config["partition-id"])])


def fedavg(arrays: Arrays) -> Arrays:
    for _ in range(ROUNDS):
        made = [trained(arrays, p) for p in range(NODES)]
        arrays = {n: np.mean([m[n] for m in made], 0, np.float64).astype("f4") for n in arrays}
    return arrays


@pytest.mark.parametrize(
    ("make", "select"),
    [
        (FedmlHeFedAvg, Select()),
        (FedmlHeFedAvg, Select(0.25)),
        (FlasheFedAvg, Select(0.25)),
        (EsaflFedAvg, Select(0.25, rest="drop")),
    ],
)
def test_adapters_are_a_model_like_any_other(make: Any, select: Select, tmp_path: Path) -> None:
    app = Node(HEMod(sensitivity=own_map))
    app.trained = trained
    grid = Puppets(tmp_path, NODES, app, config=lambda _: {"flhe-min-select": 0.25})
    start = adapters(network({}))
    initial = {"initial_arrays": records.from_numpy(start)}
    play(make, grid, ROUNDS, start=initial, weighted=False, select=select)
    model = same(grid, range(NODES))
    assert list(model.masters) == list(start)
    assert model.layout.floats == sum(a.size for a in start.values()) == 200
    if select.rest == "clear":
        expected = fedavg(start)
        for name, array in model.masters.items():
            assert np.abs(array - expected[name]).max() < 1e-3, name
        return
    assert model.mask is not None
    assert model.mask.count == 50
    moved = np.concatenate([(model.masters[n] - start[n]).reshape(-1) for n in start])
    assert set(np.flatnonzero(moved).tolist()) <= set(model.mask.coords.tolist())
    assert np.count_nonzero(moved) > 30

"""FedSGD under encryption steps as torch's own optimizers do on the mean gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flhe.strategies import BatchCryptFedAvg, EsaflFedAvg
from tests.strategies.puppets import Puppets, play, same
from tests.strategies.reference import COUNTS, gradient, start_arrays

NODES = 4
ALL = range(NODES)

STEPS: list[tuple[Any, dict[str, Any], Any]] = [
    (BatchCryptFedAvg, {"key_bits": 2048}, lambda p: torch.optim.Adam(p, lr=0.05)),
    (EsaflFedAvg, {}, lambda p: torch.optim.RMSprop(p, 0.02, momentum=0.5)),
    (EsaflFedAvg, {}, lambda p: torch.optim.SGD(p, 1.0, 0.9, nesterov=True)),
    (EsaflFedAvg, {}, lambda p: torch.optim.SGD(p, lr=0.5)),
    (EsaflFedAvg, {"keys": "round"}, lambda p: torch.optim.SGD(p, lr=0.5)),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("make", "how", "optimizer"), STEPS)
def test_every_client_steps_as_torch_would(
    tmp_path: Path, make: Any, how: dict[str, Any], optimizer: Any
) -> None:
    """Ten rounds of FedSGD under encryption beside torch's optimizer on the float64 mean gradient."""
    grid = Puppets(tmp_path, NODES, config=lambda _: {"flhe-key-bits": 2048})
    grid.app.trained = gradient
    start = start_arrays()
    names = [n for n, a in start.items() if a.dtype.kind == "f" and a.size]
    weights = [torch.nn.Parameter(torch.tensor(start[n].astype(np.float64))) for n in names]
    reference = optimizer(weights)
    play(make, grid, 10, optimizer=optimizer(weights), clip=1.0, bits=28, **how)
    for _ in range(10):
        now = dict(zip(names, (w.detach().numpy() for w in weights), strict=True))
        each = [gradient({**start, **now}, p) for p in ALL]
        for name, weight in zip(names, weights, strict=True):
            mean = np.average([told[name] for told in each], axis=0, weights=COUNTS[:NODES])
            weight.grad = torch.as_tensor(np.asarray(mean, np.float64))
        reference.step()
    model = same(grid, ALL)
    assert model.steps == 10
    for name, weight in zip(names, weights, strict=True):
        slack = 5e-3 if name == "half" else 1e-4
        moved = np.abs(weight.detach().numpy() - start[name]).max()
        assert moved > 0.05  # otherwise this shows nothing
        np.testing.assert_allclose(model.masters[name], weight.detach().numpy(), atol=slack, rtol=0)

"""ESAFL with the real app, and a node that is killed in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flhe.keys.agreement.epoch import Epoch
from flhe.math.ring import Q
from flhe.node.store import Store
from flhe.schemes.esafl.keys import EsheKey
from flhe.strategies.report import Reporter, RoundReport
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_app import client_app
from flhe_app.dropouts import victim
from flhe_app.server_app import make_strategy
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model

NODES, ROUNDS, KILL = 5, 3, 2
LIVE = [NODES] * (KILL - 1) + [NODES - 1] * (ROUNDS - KILL + 1)
TASK = task_named("digits")
DEAD = victim(0, KILL, NODES)
OTHERS = [i for i in range(NODES) if i != DEAD]
TRAININGS = sum(LIVE)
"""Each node once a round, as long as it lives, however often a round is asked for."""


class Run:
    """One run of the app's client and server code over a grid in this process."""

    def __init__(
        self, tmp: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, **config: Any
    ) -> None:
        settings = Settings(scheme=scheme, nodes=NODES, num_rounds=ROUNDS, **config)
        self.homes = [tmp / scheme / f"node-{i}" for i in range(NODES)]
        self.reports: list[RoundReport] = []
        self.wire: list[bytes] = []
        self.trainings = 0
        for name in ("train", "batch_gradient"):
            monkeypatch.setattr(client_app, name, self._counting(getattr(client_app, name)))
        grid = InProcessGrid(
            client_app.app,
            NODES,
            run_config=settings.to_config(),
            node_config=lambda i: {
                "flhe-home": str(self.homes[i]),
                "flhe-trust": "first-use",
                "flhe-schemes": scheme,
            },
            tap=lambda _direction, _node, content: self.wire.append(content),
        )
        strategy = make_strategy(settings, TASK, Reporter(None))
        setattr(strategy, "_on_round" if scheme == "plain" else "on_round", self.reports.append)
        initial = ArrayRecord(new_model(TASK, settings.seed).state_dict())
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS, timeout=120)
        grid.close()

    def _counting(self, train: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.trainings += 1
            return train(*args, **kwargs)

        return counted

    @property
    def accuracy(self) -> float:
        assert self.reports[-1].accuracy is not None
        return self.reports[-1].accuracy

    @property
    def survivors(self) -> list[int]:
        return [report.survivors for report in self.reports]

    def epochs(self, node: int) -> int:
        """Epochs that a node was ever in: claims stay when keys are destroyed."""
        return len(list((self.homes[node] / "used").iterdir()))

    def models(self, nodes: list[int]) -> set[bytes]:
        files = [next(self.homes[node].glob("runs/*/model")) for node in nodes]
        found = [Model.from_bytes(file.read_bytes()) for file in files]
        assert {model.round for model in found} == {ROUNDS}
        return {b"".join(a.tobytes() for a in model.masters.values()) for model in found}

    def keys(self) -> dict[str, NDArray[np.signedinteger[Any]]]:
        """Every key polynomial that is on some node's disk in the end."""
        found: dict[str, NDArray[np.signedinteger[Any]]] = {}
        for node, home in enumerate(self.homes):
            store = Store(home)
            for epoch_id in store.epochs():
                secret = Epoch.from_bytes(store.peek_epoch(epoch_id)).scheme_secret
                if secret:
                    key = EsheKey.from_bytes(secret)
                    found |= {f"own {node}": key.own, f"sum {node}": key.total}
        return found


def forms(key: NDArray[np.signedinteger[Any]]) -> list[bytes]:
    """Stretches of a key, as integers of every size and as residues."""
    part = key[100:132].astype(np.int64)
    kinds = [part.astype(kind) for kind in ("<i2", "<i4", "<i8", "<f4")]
    kinds += [part.astype(np.int8)] if np.abs(part).max() < 128 else []
    kinds.append(np.array([int(x) % Q for x in part], "<u8"))
    return [kind.tobytes() for kind in kinds]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    found = {}
    for scheme in ("plain", "esafl"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            # Fine steps: what rounding does to three rounds is worth an image or two of 288.
            tmp = tmp_path_factory.mktemp("killed")
            found[scheme] = Run(tmp, monkeypatch, scheme, kill=KILL, bits=24)
    return found


def test_a_node_killed_in_round_2_costs_no_accuracy(runs: dict[str, Run]) -> None:
    assert runs["esafl"].survivors == runs["plain"].survivors == LIVE
    assert runs["plain"].accuracy >= 0.9
    assert abs(runs["esafl"].accuracy - runs["plain"].accuracy) <= 0.01


def test_the_others_agree_on_new_keys_and_send_the_same_update(runs: dict[str, Run]) -> None:
    run = runs["esafl"]
    assert run.epochs(DEAD) == 1
    assert {run.epochs(node) for node in OTHERS} != {1}
    assert len({run.epochs(node) for node in OTHERS}) == 1
    assert run.trainings == runs["plain"].trainings == TRAININGS
    assert len(run.models(OTHERS)) == 1


def test_no_key_is_ever_on_the_wire(runs: dict[str, Run]) -> None:
    run = runs["esafl"]
    keys = run.keys()
    assert len(keys) == 2 * NODES  # the dead node's are of the first epoch
    sums = {keys[f"sum {node}"].tobytes() for node in OTHERS}
    assert len(sums) == 1
    assert keys[f"sum {DEAD}"].tobytes() not in sums
    wire = b"\x00".join(run.wire)
    assert len(wire) > 1_000_000
    for name, key in keys.items():
        assert not [form for form in forms(key) if form in wire], name
    planted = keys["own 0"]
    for kind in (np.int8, "<i4"):
        assert any(form in wire + planted.astype(kind).tobytes() for form in forms(planted))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("config", "epochs"),
    [
        ({"per_round_keys": True}, {1}),
        ({"clipping": "exchange"}, {2, 3}),
        ({"clipping": "history"}, {2, 3}),
        ({"ring": "rns-8192"}, {2, 3}),
        ({"ring": "rns-16384", "bits": 32}, {2, 3}),
        ({"drops": 1}, {3, 4, 5, 6, 7, 8, 9, 10}),
    ],
    ids=str,
)
def test_whatever_else_is_asked_for(
    config: dict[str, Any], epochs: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch, "esafl", kill=KILL, **config)
    assert run.accuracy >= 0.9
    assert {run.epochs(node) for node in OTHERS} <= epochs
    if "drops" not in config:
        assert run.survivors == LIVE
        assert run.trainings == TRAININGS


@pytest.mark.sweep
@pytest.mark.parametrize("per_round_keys", [False, True])
def test_gradients_too(
    per_round_keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedSGD with SGD ends where torch does, though one is killed."""
    config = {"kill": KILL, "algorithm": "fedsgd", "client_optimizer": "sgd", "client_lr": 0.1}
    plain = Run(tmp_path, monkeypatch, "plain", **config)
    mine = Run(tmp_path, monkeypatch, "esafl", per_round_keys=per_round_keys, **config)
    assert mine.survivors == plain.survivors == LIVE
    assert len(mine.models(OTHERS)) == 1
    assert abs(mine.accuracy - plain.accuracy) <= 0.01

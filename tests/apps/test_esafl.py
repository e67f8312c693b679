"""ESAFL with the real app, and a node that is killed in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.keys.agreement.epoch import Epoch
from flhe.math.ring import Q
from flhe.node import audit
from flhe.node.store import Store
from flhe.schemes.joint_key import JointKey
from flhe_app import client_app
from flhe_app.dropouts import victim
from flhe_app.settings import Settings
from tests.apps.federation import Federated

NODES, ROUNDS, KILL = 5, 3, 2
LIVE = [NODES] * (KILL - 1) + [NODES - 1] * (ROUNDS - KILL + 1)
DEAD = victim(0, KILL, NODES)
OTHERS = [i for i in range(NODES) if i != DEAD]
TRAININGS = sum(LIVE)
"""Each node once a round, as long as it lives, however often a round is asked for."""


class Run(Federated):
    """One run, in which trainings are counted."""

    def __init__(
        self, tmp: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, **config: Any
    ) -> None:
        self.trainings = 0
        for name in ("train", "batch_gradient"):
            monkeypatch.setattr(client_app, name, self._counting(getattr(client_app, name)))
        settings = Settings(scheme=scheme, nodes=NODES, num_rounds=ROUNDS, **config)
        super().__init__(tmp, settings, {"flhe-fresh-keys": False})

    def _counting(self, train: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.trainings += 1
            return train(*args, **kwargs)

        return counted

    def epochs(self, node: int) -> int:
        """Epochs that a node was ever in."""
        entries = audit.last(Store(self.homes[node]), 10**6)
        return len({entry.epoch for entry in entries if entry is not None and entry.epoch})

    def together(self, nodes: list[int]) -> bool:
        """Whether those are at the end, with one model."""
        found = self.models(nodes)
        return {m.round for m in found} == {ROUNDS} and len({m.fingerprint() for m in found}) == 1

    def keys(self) -> dict[str, NDArray[np.signedinteger[Any]]]:
        """Every key polynomial that is on some node's disk in the end."""
        found: dict[str, NDArray[np.signedinteger[Any]]] = {}
        for node, home in enumerate(self.homes):
            store = Store(home)
            for name in store.names("epochs/*"):
                secret = Epoch.from_bytes(store.read(name)).scheme_secret
                if secret:
                    key = JointKey.from_bytes(secret)
                    found |= {f"own {node}": key.own, f"sum {node}": key.total}
        return found


def forms(key: NDArray[np.signedinteger[Any]]) -> list[bytes]:
    """Stretches of a key, as integers of every size and as residues."""
    part = key[100:132].astype(np.int64)
    kinds = [part.astype(kind) for kind in ("<i2", "<i4", "<i8", "<f4")]
    kinds += [part.astype(np.int8)] if np.abs(part).max() < 128 else []
    kinds.append(np.array([int(x) % Q for x in part], "<u8"))
    return [kind.tobytes() for kind in kinds]


LASTING = "esafl keys=joint"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    found = {}
    for scheme in ("plain", LASTING):
        with pytest.MonkeyPatch.context() as monkeypatch:
            # Fine steps: what rounding does to three rounds is worth an image or two of 288.
            tmp = tmp_path_factory.mktemp("killed")
            own = {} if scheme == "plain" else {"bits": 24}
            found[scheme] = Run(tmp, monkeypatch, scheme, kill=KILL, **own)
    return found


def test_a_node_killed_in_round_2_costs_no_accuracy(runs: dict[str, Run]) -> None:
    assert runs[LASTING].survivors == runs["plain"].survivors == LIVE
    assert runs["plain"].accuracy >= 0.9
    assert abs(runs[LASTING].accuracy - runs["plain"].accuracy) <= 0.01


def test_the_others_agree_on_new_keys_and_send_the_same_update(runs: dict[str, Run]) -> None:
    run = runs[LASTING]
    assert run.epochs(DEAD) == 1
    assert {run.epochs(node) for node in OTHERS} != {1}
    assert len({run.epochs(node) for node in OTHERS}) == 1
    assert run.trainings == runs["plain"].trainings == TRAININGS
    assert run.together(OTHERS)


def test_no_key_is_ever_on_the_wire(runs: dict[str, Run]) -> None:
    run = runs[LASTING]
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
        ({"scheme": "esafl"}, {1}),
        ({"clipping": "exchange"}, {2, 3}),
        ({"clipping": "history"}, {2, 3}),
        ({"scheme": "esafl ring=rns-8192 keys=joint"}, {2, 3}),
        ({"scheme": "esafl ring=rns-16384 keys=joint", "bits": 32}, {2, 3}),
        ({"drops": 1}, {3, 4, 5, 6, 7, 8, 9, 10}),
    ],
    ids=str,
)
def test_whatever_else_is_asked_for(
    config: dict[str, Any], epochs: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch, **{"scheme": LASTING, "kill": KILL, **config})
    assert run.accuracy >= 0.9
    assert {run.epochs(node) for node in OTHERS} <= epochs
    if "drops" not in config:
        assert run.survivors == LIVE
        assert run.trainings == TRAININGS


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["esafl", LASTING])
def test_gradients_too(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSGD with SGD ends where torch does, though one is killed."""
    config = {"kill": KILL, "algorithm": "fedsgd", "client_optimizer": "sgd", "client_lr": 0.1}
    plain = Run(tmp_path, monkeypatch, "plain", **config)
    mine = Run(tmp_path, monkeypatch, scheme, **config)
    assert mine.survivors == plain.survivors == LIVE
    assert mine.together(OTHERS)
    assert abs(mine.accuracy - plain.accuracy) <= 0.01

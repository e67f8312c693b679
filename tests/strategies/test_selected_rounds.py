"""Rounds in which a part of each update is encrypted: under every scheme, by every rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from numpy.typing import NDArray

from flhe.coding.laplace import Laplace
from flhe.coding.pack import Packing
from flhe.coding.select import Select
from flhe.errors import QuorumError
from flhe.mods import HEMod
from flhe.strategies import EsaflFedAvg, FedmlHeFedAvg, FlasheFedAvg, HEStrategy
from flhe.training.schedule import Step
from tests.mods.harness import update
from tests.strategies.puppets import Node, Puppets, play, same
from tests.strategies.reference import EQUAL, Reference, close, start_arrays, tolerance, trained
from tests.strategies.variants import VARIANTS, Make

pytestmark = pytest.mark.usefixtures("quick")

SCHEMES: dict[str, tuple[Make, dict[str, Any]]] = {
    "flashe, thresholds of the past": (FlasheFedAvg, {"clip": "history", "bits": 20}),
    "fedml-he, fitted thresholds": (FedmlHeFedAvg, {"clip": "exchange", "bits": 20}),
    "esafl, keys of a round": (EsaflFedAvg, {}),
}


def sensitive(message: Message, context: Context) -> Mapping[str, NDArray[Any]]:
    """A node's sensitivities: those of "w" rise along the array, all alike but for their scale."""
    partition = int(context.node_config["partition-id"])
    assert set(message.content) == {"arrays", "config"}
    shapes = {n: a.shape for n, a in start_arrays().items() if a.dtype.kind == "f"}
    found = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    found["w"] = np.arange(63, dtype=np.float32).reshape(9, 7) * 10.0**partition
    return {**found, "frozen": np.zeros(9, np.float32)}  # of the app's own, it never travels


def puppets(path: Path, nodes: int, sensitivity: Any = sensitive, **config: Any) -> Puppets:
    return VARIANTS["flashe"].nodes(path, nodes, Node(HEMod(sensitivity=sensitivity)), **config)


def run(make: Make, grid: Puppets, rounds: int, **how: Any) -> HEStrategy:
    return play(make, grid, rounds, **how)[0]


@pytest.mark.parametrize("name", SCHEMES)
def test_it_is_fedavg_up_to_quantization(name: str, tmp_path: Path) -> None:
    make, how = SCHEMES[name]
    grid = puppets(tmp_path, 4)
    run(make, grid, 2, select=Select(0.1), weighted=False, **how)
    model = same(grid, range(4))
    assert model.round == 3
    assert model.mask.coords.tolist() == list(range(63 - 7, 63))  # ceil(0.1 * 67)
    exact = 0.05 if "thresholds" in name else 2 * tolerance(range(4), 2, False)
    close(model, Reference.of([range(4)] * 2, EQUAL), exact)


def uploads(grid: Puppets) -> list[tuple[int, NDArray[np.uint8]]]:
    """Partition and ciphertext of every update, in order."""
    found = []
    for node, stage, reply in grid.replies:
        if stage in ("round", "update") and not reply.has_error():
            found.append((node - 100, update(reply).data))
    return found


def test_the_round_for_the_map_trains_nobody_and_all_else_is_shown(tmp_path: Path) -> None:
    grid = puppets(tmp_path, 3)
    run(FedmlHeFedAvg, grid, 1, select=0.1)
    assert [c["server-round"] for c in grid.app.configs] == [1, 1, 1]
    told = uploads(grid)
    packing, start = Packing(18), start_arrays()
    for (_, whole), (partition, data) in zip(told[:3], told[3:], strict=True):
        tail = data[whole.size :]  # both have one block of CKKS
        assert tail.size == packing.nbytes(60)
        shown = np.empty(60, packing.signed)
        packing.unpack(tail, np.zeros(60, packing.lane), shown)
        after, floats = trained(start, partition), [n for n in start if start[n].dtype.kind == "f"]
        change = np.concatenate([(after[n].astype("d") - start[n]).reshape(-1) for n in floats])
        assert np.abs(shown - np.delete(change, np.arange(56, 63)) * (2**15 - 1)).max() <= 1.01


class Falling(FlasheFedAvg):
    """A strategy whose rate follows from the round."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    ("make", "lr", "told"),
    [(FlasheFedAvg, Step(0.1, 0.5, 1), [0.1, 0.05]), (Falling, 1.0, [0.1 / 2, 0.1 / 3])],
)
def test_settings_may_differ_by_round(
    make: Make, lr: Any, told: list[float], tmp_path: Path
) -> None:
    """The round for the map asked for those of a round 0, and the run failed."""
    grid = puppets(tmp_path, 3)
    run(make, grid, 2, select=0.1, weighted=False, start={"train_config": {"lr": lr}})
    assert [config["lr"] for config in grid.app.configs] == pytest.approx(np.repeat(told, 3))


@pytest.mark.parametrize(
    ("config", "select"),
    [
        ({"flhe-min-select": 0.2}, Select(0.1)),
        ({"flhe-min-select": 0.5}, Select(rule="layers:half")),
    ],
)
def test_a_node_shows_no_more_than_its_policy_allows(
    config: dict[str, Any], select: Select, tmp_path: Path
) -> None:
    grid = puppets(tmp_path, 3, **config)
    with pytest.raises(QuorumError, match="flhe/policy"):
        run(FedmlHeFedAvg, grid, 1, select=select, retries=0)
    assert not uploads(grid)


def test_nodes_encrypt_everything_unless_told_otherwise(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3, Node(HEMod(sensitivity=sensitive)))
    with pytest.raises(QuorumError, match="flhe/policy"):
        run(FedmlHeFedAvg, grid, 1, select=0.9, retries=0)
    grid = Puppets(tmp_path / "drop", 3, Node(HEMod(sensitivity=sensitive)))
    run(FedmlHeFedAvg, grid, 1, select=Select(0.5, rest="drop"))  # nothing is shown
    assert same(grid, range(3)).round == 2


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (None, "flhe/config"),
        ({}, "flhe/protocol"),
        ({"w": np.zeros((9, 7), np.float32)}, "flhe/range"),
    ],
)
def test_an_app_without_a_map_or_with_none_that_is_one_is_named(
    bad: Any, code: str, tmp_path: Path
) -> None:
    grid = puppets(tmp_path, 3, None if bad is None else lambda message, context: bad)
    with pytest.raises(QuorumError, match=code):
        run(FedmlHeFedAvg, grid, 1, select=0.1, retries=0)


# --- noise ---


def test_a_node_sends_as_many_noisy_updates_as_its_policy_allows(tmp_path: Path) -> None:
    grid = puppets(tmp_path, 3, **{"flhe-max-releases": 2})
    with pytest.raises(QuorumError, match="flhe/policy"):
        run(FedmlHeFedAvg, grid, 3, select=0.1, noise=Laplace(0.01), retries=0)
    assert len(uploads(grid)) == 9  # the map, and two rounds
    grid = puppets(tmp_path / "none", 3, **{"flhe-max-releases": 1})
    run(FedmlHeFedAvg, grid, 2, select=0.1)  # what has no noise has no account

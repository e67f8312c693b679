"""Rounds of several stages: what is told once, what late joiners take over, what the server sees."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.mods import records
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from tests.strategies.puppets import Puppets, fail_once, play, same
from tests.strategies.reference import start_arrays

pytestmark = pytest.mark.usefixtures("quick")

BITS = 30
"""So fine that what is left is error feedback alone."""


class Sparse(Puppets):
    """Puppets, and what they keep of updates."""

    def __init__(self, path: Path, nodes: int) -> None:
        super().__init__(path, nodes, config=lambda _: {"flhe-unpermuted": True})

    def answers(self, node: int, step: str) -> list[Any]:
        """What a node said in a step of its rounds."""
        replies = [reply for n, _, reply in self.replies if n == node and reply.has_content()]
        said = [records.find_config(reply.content, records.REPLY) or {} for reply in replies]
        return [each for each in said if each.get("step") == step]


def run(grid: Puppets, rounds: int = 3, **how: Any) -> HEStrategy:
    return play(FlasheFedAvg, grid, rounds, **{"bits": BITS, "clip": 8.0, **how})[0]


def test_ranges_are_opened_once_a_round(tmp_path: Path) -> None:
    """A second attempt uses the mean squares of the first: nobody learns the sum over two sets."""
    grid = Sparse(tmp_path, 4)
    fail_once(grid, "update", 2, 4)
    run(grid, 3, clip="exchange")
    assert len(grid.answers(100, "mean-squares")) == 3
    assert same(grid, range(4)).round == 3


def test_who_comes_late_fits_the_same_thresholds(tmp_path: Path) -> None:
    """Memory of codecs and optimizers is in the checkpoint: joiners clip, select and step alike."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda r: {103, 104} if r < 3 else set()
    how: dict[str, Any] = {"optimizer": Optimizer("fedadam"), "masking": "adaptive"}
    run(grid, 5, top_k=0.3, small=0, warmup=1, bits=16, clip="history", **how)
    model = same(grid, range(5))
    assert set(model.moments) == {"m", "v"}
    assert np.abs(model.moments["m"]).max() > 0
    assert grid.survivors[-1] == 5
    assert model.memory["topk.rounds"].tolist() == [5.0]
    assert model.memory["clip.mean-square"].size == 5


# --- what the server sees ---


def views(grid: Sparse) -> list[list[Support]]:
    """The supports that the server was told: of each node, by round."""
    floats = Model.initial(start_arrays()).layout.floats
    return [
        [Support.from_bytes(s["support"], floats) for s in grid.answers(node, "supports")]
        for node in (100, 101, 102)
    ]


def watched(path: Path, **how: Any) -> list[list[Support]]:
    """Rounds in which training changes ten coordinates of "w" most, always the same ones."""
    grid = Sparse(path, 3)

    def train(arrays: Mapping[str, NDArray[Any]], partition: int) -> dict[str, NDArray[Any]]:
        change = np.full(63, 1e-4)
        change[np.arange(10) + 5 * partition] = 0.01
        moved = (arrays["w"] + change.reshape(9, 7)).astype(np.float32)
        return {**{name: np.array(a) for name, a in arrays.items()}, "w": moved}

    grid.app.trained = train
    run(grid, 6, top_k=10 / 63, small=0, warmup=0, clip=1.0, **how)
    return views(grid)


def common(supports: Iterable[Support]) -> list[int]:
    """Coordinates that each two have in common."""
    pairs = itertools.combinations(supports, 2)
    return [np.intersect1d(a.coords, b.coords).size for a, b in pairs]


def linked(found: list[list[Support]]) -> float:
    """Coordinates that a node's supports of two rounds have in common, on average."""
    return float(np.mean([common(of_node) for of_node in found]))


def test_supports_are_not_linked_across_rounds(tmp_path: Path) -> None:
    permuted = watched(tmp_path / "a")
    clear = watched(tmp_path / "c", permute=False)
    first = permuted[0][0]
    by_chance = first.count * first.count / first.length
    assert linked(permuted) < by_chance + 2.5, "no more in common than by chance"
    assert linked(clear) == first.count, "the control: without permutation it is a fingerprint"
    by_round = [list(map(common, zip(*found, strict=True))) for found in (permuted, clear)]
    assert by_round[0] == by_round[1], "counts and overlaps within a round are what it shows"

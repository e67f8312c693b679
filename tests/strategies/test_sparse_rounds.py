"""Rounds of several stages: Algorithm 1 under encryption, whoever drops out at which stage."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.errors import QuorumError
from flhe.mods import HEMod, records
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from tests.strategies.puppets import Fates, Node, Puppets, fail_once, play, same, told
from tests.strategies.reference import EQUAL, WEIGHTS, start_arrays, trained

pytestmark = pytest.mark.usefixtures("quick")

GONE: Fates = {(2, "round"): [1], (2, "update"): [3], (3, "round"): [0], (4, "update"): [4, 0]}
LOST: Fates = {(3, "round"): [2], (5, "update"): [2]}
BITS = 30
"""So fine that what is left is error feedback alone."""


class Sparse(Puppets):
    """Puppets, and what they keep of updates."""

    def __init__(self, path: Path, nodes: int) -> None:
        super().__init__(path, nodes, config=lambda _: {"flhe-unpermuted": True})

    def draft(self, index: int) -> Draft | None:
        path = self.run_dir(index) / "draft"
        return Draft.from_bytes(path.read_bytes()) if path.exists() else None

    def residual(self, index: int) -> NDArray[np.float32]:
        residual = Draft.from_bytes((self.run_dir(index) / "residual").read_bytes()).residual
        assert residual is not None
        return residual

    def answers(self, node: int, step: str) -> list[Any]:
        """What a node said in a step of its rounds."""
        replies = [reply for n, _, reply in self.replies if n == node and reply.has_content()]
        said = [records.find_config(reply.content, records.REPLY) or {} for reply in replies]
        return [each for each in said if each.get("step") == step]


def run(grid: Puppets, rounds: int = 3, **how: Any) -> HEStrategy:
    return play(FlasheFedAvg, grid, rounds, **{"bits": BITS, "clip": 8.0, **how})[0]


def once(grid: Puppets) -> list[int]:
    """Round 2's first attempt reaches nobody with its update."""
    return fail_once(grid, "update", 2, 4)


class Algorithm1:
    """FLASHE's Algorithm 1 in clear: per-layer top-k with error feedback."""

    def __init__(self, share: float, weights: Mapping[int, float]) -> None:
        self.share, self.weights = share, weights
        self.model = Model.initial(start_arrays())
        layout = self.model.layout
        self.residual = {p: np.zeros(layout.floats, np.float32) for p in weights}

    def round(self, trains: Iterable[int], survive: Iterable[int]) -> None:
        """`trains` train, and `survive` of them are in the sum."""
        layout, weights = self.model.layout, self.weights
        total = np.zeros(layout.floats)
        survivors = list(survive)
        integers = np.zeros(layout.integers)
        weight = sum(weights[p] for p in survivors)
        for p in trains:
            change, steps = layout.change(trained(self.model.arrays(), p), self.model.masters)
            update = change + self.residual[p]
            if p not in survivors:
                self.residual[p] = update
                continue
            kept = np.zeros_like(update)
            for _, start, stop in layout.segments():
                part = update[start:stop]
                k = int(np.ceil(round(self.share * part.size, 9)))
                order = sorted(range(part.size), key=lambda i, v=part: (-abs(v[i]), i))  # type: ignore[misc]
                for i in order[:k]:
                    kept[start + i] = part[i]
            self.residual[p] = update - kept
            total += weights[p] * kept.astype(np.float64)
            integers += weights[p] * steps
        mean = total / weight
        whole = np.floor(integers / weight + 0.5).astype(int).tolist()
        masters = layout.apply(self.model.masters, mean.astype(np.float32), whole)
        self.model = Model(layout, self.model.round + 1, bytes(32), masters)

    def matches(self, model: Model, atol: float) -> None:
        for name, expected in self.model.masters.items():
            np.testing.assert_allclose(model.masters[name], expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("masking", "permute", "weighted"),
    [("double", True, True), ("single", False, True), ("adaptive", True, False)],
)
def test_it_is_algorithm_1_whoever_drops_out(
    tmp_path: Path, masking: Any, permute: bool, weighted: bool
) -> None:
    """Those that a round does not reach keep their residual; those that it lost put all back."""
    weights = WEIGHTS if weighted else EQUAL
    grid = Sparse(tmp_path, 6)
    grid.unreached, grid.lost = GONE, LOST
    how: dict[str, Any] = {"masking": masking, "permute": permute, "weighted": weighted}
    run(grid, 5, top_k=0.3, small=0, warmup=0, min_replies=2, **how)
    reference = Algorithm1(0.3, weights)
    for round_ in range(1, 6):
        trains = [p for p in range(6) if p not in GONE.get((round_, "round"), ())]
        away = [p for of in (GONE, LOST) for (at, _), ps in of.items() if at == round_ for p in ps]
        reference.round(trains, [p for p in trains if p not in away])
    model = same(grid, range(6))
    assert model.round == 5
    assert grid.survivors == [6, 4, 4, 4, 5]
    reference.matches(model, 1e-4)
    for p in range(6):
        np.testing.assert_allclose(grid.residual(p), reference.residual[p], rtol=0, atol=1e-4)
        assert grid.draft(p) is None


def test_a_round_that_is_asked_for_again_trains_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The update is on disk: another attempt encrypts it again, with masks and an order of its own."""
    grid = Sparse(tmp_path, 4)
    once(grid)
    run(grid, 3, top_k=0.25, small=0, warmup=0)
    assert "asking again (attempt 2)" in caplog.text
    assert [grid.trainings(p) for p in range(4)] == [3] * 4
    supports = [said["support"] for said in grid.answers(100, "supports")]
    assert len(supports) == len(set(supports)) == 4, "each attempt has an order of its own"
    reference = Algorithm1(0.25, WEIGHTS)
    for _ in range(3):
        reference.round(range(4), range(4))
    reference.matches(same(grid, range(4)), 1e-4)


def test_ranges_are_opened_once_a_round(tmp_path: Path) -> None:
    """A second attempt uses the mean squares of the first: nobody learns the sum over two sets."""
    grid = Sparse(tmp_path, 4)
    once(grid)
    run(grid, 3, clip="exchange")
    assert [len(grid.answers(100, step)) for step in ("mean-squares", "update", "supports")] == [
        3,
        3,
        0,
    ]
    assert same(grid, range(4)).round == 3


@pytest.mark.parametrize(
    ("clip", "mapped", "rounds"),
    [
        (1.0, False, []),
        ("history", False, [1]),
        ("exchange", False, [1, 2, 3]),
        ("history", True, [2]),
        ("exchange", True, [2, 3, 4]),
    ],
)
def test_mean_squares_are_asked_for_when_they_are_due(
    tmp_path: Path, clip: Any, mapped: bool, rounds: list[int]
) -> None:
    """A round for the map of what is selected has none."""
    grid = Puppets(
        tmp_path, 3, Node(HEMod(sensitivity=lambda *_: {"w": np.ones((9, 7), np.float32)}))
    )
    found = list[int]()

    def noted(_: int, reply: Message) -> None:
        if told(reply)["step"] == "mean-squares":
            found.append(grid.round)

    grid.lies([100], "round", noted)
    select = Select(0.5, rest="drop") if mapped else None
    play(FlasheFedAvg, grid, 3, weighted=False, clip=clip, select=select)
    assert found == rounds
    assert grid.survivors == [3] * len(grid.reports)


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


def test_too_few_supports_end_the_attempt(tmp_path: Path) -> None:
    grid = Sparse(tmp_path, 4)
    grid.unreached = {(1, "round"): [0, 1]}
    with pytest.raises(QuorumError, match="2 nodes answered stage 'supports', 3 needed"):
        run(grid, 1, top_k=0.25, small=0, retries=0)


# --- what the server sees ---


def views(grid: Sparse) -> list[list[Support]]:
    """The supports that the server was told: of each round, by node."""
    floats = Model.initial(start_arrays()).layout.floats
    said = [grid.answers(node, "supports") for node in (100, 101, 102)]
    return [
        [Support.from_bytes(s["support"], floats) for s in of] for of in zip(*said, strict=True)
    ]


def watched(path: Path, places: Callable[[int], NDArray[np.int64]], **how: Any) -> Sparse:
    """Rounds in which training changes the given coordinates of "w" most, always the same ones."""
    grid = Sparse(path, 3)

    def train(arrays: Mapping[str, NDArray[Any]], partition: int) -> dict[str, NDArray[Any]]:
        change = np.full(63, 1e-4)
        change[places(partition)] = 0.01
        moved = (arrays["w"] + change.reshape(9, 7)).astype(np.float32)
        return {**{name: np.array(a) for name, a in arrays.items()}, "w": moved}

    grid.app.trained = train
    run(grid, 6, top_k=10 / 63, small=0, warmup=0, clip=1.0, **how)
    return grid


def common(supports: Iterable[Support]) -> list[int]:
    """Coordinates that each two have in common."""
    pairs = itertools.combinations(supports, 2)
    return [np.intersect1d(a.coords, b.coords).size for a, b in pairs]


def linked(found: list[list[Support]]) -> float:
    """Coordinates that a node's supports of two rounds have in common, on average."""
    return float(np.mean([common(of_node) for of_node in zip(*found, strict=True)]))


def shapes(grid: Sparse) -> Counter[str]:
    """What messages look like from outside."""
    return Counter(
        str((stage, reply.metadata.message_type, sorted(reply.content)))
        for _, stage, reply in grid.replies
        if reply.has_content()
    )


def test_supports_are_not_linked_across_rounds(tmp_path: Path) -> None:
    """Two runs that differ in which coordinates were large look alike, but for counts and overlaps."""
    first = watched(tmp_path / "a", lambda p: np.arange(10) + 5 * p)
    second = watched(tmp_path / "b", lambda p: (np.arange(10) + 5 * p) * 13 % 63)
    clear = watched(tmp_path / "c", lambda p: np.arange(10) + 5 * p, permute=False)
    one, two, three = views(first), views(second), views(clear)
    assert len(one) == 6
    assert {s.count for of in one for s in of} == {s.count for of in two for s in of}
    assert list(map(common, one)) == list(map(common, two)) == list(map(common, three))
    count = one[0][0].count
    by_chance = count * count / one[0][0].length
    for found in (one, two):
        assert linked(found) < by_chance + 2.5, "no more in common than by chance"
    assert linked(three) == count, "the control: without permutation a support is a fingerprint"
    assert shapes(first) == shapes(second)

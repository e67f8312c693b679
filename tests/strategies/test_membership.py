"""Members drop, come back, join and leave; all of them end with one model, that of plain FedAvg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi

from flhe.errors import ConfigError, QuorumError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.sealed import Sealed
from flhe.strategies import HEStrategy, flashe_fedavg
from flhe.strategies.membership import BARRED, Membership
from flhe.strategies.report import RoundReport
from flhe.training.model import Model
from flhe.training.optimizer import ServerOptimizer
from tests.strategies.puppets import (
    COUNTS,
    Arrays,
    Fate,
    Node,
    Puppets,
    Reference,
    initial,
    start_arrays,
)
from tests.strategies.test_he_strategy import MAX, close, same, tolerance

pytestmark = pytest.mark.usefixtures("quick")

WEIGHTS = dict(enumerate(COUNTS))


class Changing(Puppets):
    """A grid that does not reach every node all the time; counts from round 1."""

    def __init__(self, path: Path, nodes: int, **how: Any) -> None:
        super().__init__(path, nodes, **how)
        self.away: Callable[[int], set[int]] = lambda round_: set()
        self.round = 1
        self.reports: list[RoundReport] = []
        self.before: dict[int, Callable[[], None]] = {}

    def get_node_ids(self) -> list[int]:
        return [n for n in self.contexts if n not in self.away(self.round)]

    def after(self, report: RoundReport) -> None:
        """For `on_round`: time goes on."""
        self.reports.append(report)
        self.round = report.round + 1
        self.before.get(self.round, lambda: None)()


def run(grid: Changing, rounds: int, **how: Any) -> HEStrategy:
    strategy = flashe_fedavg(**{"max_examples": MAX, "on_round": grid.after, **how})
    strategy.start(grid, initial(), num_rounds=rounds)
    grid.close()
    return strategy


def epochs(grid: Puppets, node: int) -> int:
    """Epochs whose keys a node has had."""
    return len(list((grid.homes[node] / "used").iterdir()))


def keys(grid: Puppets, node: int) -> int:
    """Epochs whose keys a node has now."""
    return len(list((grid.homes[node] / "epochs").iterdir()))


def test_the_whole_story(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """2 of 5 drop in round 3, one is back in 5, a sixth joins in 6, one leaves in 7."""
    caplog.set_level("INFO", "flwr")
    grid = Changing(tmp_path, 6)
    grid.away = lambda r: (
        ({105} if r < 6 else set())
        | ({101, 102} if r == 4 else set())
        | ({102} if 5 <= r < 9 else set())
    )
    grid.fate = lambda node, stage, r: "silent" if r == 3 and node in (101, 102) else None
    grid.before[7] = lambda: grid.contexts[104].node_config.update({"flhe-leave": True})
    run(grid, 10)
    present = {
        1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3, 4], 3: [0, 3, 4], 4: [0, 3, 4], 5: [0, 1, 3, 4],
        6: [0, 1, 3, 4, 5], 7: [0, 1, 3, 5], 8: [0, 1, 3, 5], 9: [0, 1, 2, 3, 5],
        10: [0, 1, 2, 3, 5],
    }  # fmt: skip
    assert [r.survivors for r in grid.reports] == [len(p) for p in present.values()]
    reference = Reference(WEIGHTS)
    bound = 0.0
    for partitions in present.values():
        reference.round(partitions)
        bound += tolerance(partitions, 1)
    model = same(grid, [0, 1, 2, 3, 5])
    assert model.round == 10
    close(model, reference, bound)
    assert not list((grid.homes[4] / "epochs").iterdir()), "who left has no keys"
    assert [epochs(grid, n) for n in range(6)] == [4, 4, 2, 4, 2, 3]
    assert [keys(grid, n) for n in range(6)] == [1, 1, 1, 1, 0, 1]
    for said in ("1 join", "1 left", "node 105 has caught up", "node 102 has caught up"):
        assert said in caplog.text


def test_the_plain_simulation_would_notice(tmp_path: Path) -> None:
    """The comparison above means something: with one participant more it fails."""
    grid = Changing(tmp_path, 5)
    grid.fate = lambda node, stage, r: "silent" if r == 2 and node == 101 else None
    run(grid, 2)
    wrong, right = Reference(WEIGHTS), Reference(WEIGHTS)
    for reference, second in ((wrong, range(5)), (right, [0, 2, 3, 4])):
        reference.round(range(5))
        reference.round(second)
    model = same(grid, [0, 2, 3, 4])
    close(model, right, tolerance(range(4), 2))
    with pytest.raises(AssertionError):
        close(model, wrong, tolerance(range(4), 2))


def test_fresh_keys_every_other_round(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 4)
    run(grid, 6, rekey_every=2)
    assert [epochs(grid, n) for n in range(4)] == [3] * 4
    assert [keys(grid, n) for n in range(4)] == [1] * 4
    reference = Reference(WEIGHTS)
    for _ in range(6):
        reference.round(range(4))
    close(same(grid, range(4)), reference, tolerance(range(4), 6))


def test_fresh_keys_when_asked_for(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 3)
    strategy = flashe_fedavg(max_examples=MAX, on_round=grid.after)
    grid.before[3] = strategy.rekey
    strategy.start(grid, initial(), num_rounds=4)
    assert [epochs(grid, n) for n in range(3)] == [2] * 3
    assert same(grid, range(3)).round == 4


def test_a_member_that_lost_its_directory(tmp_path: Path) -> None:
    """It is a new site then, with a new identity; the group takes it in."""
    import shutil

    grid = Changing(tmp_path, 4)
    grid.before[3] = lambda: shutil.rmtree(grid.homes[2])
    run(grid, 5)
    assert same(grid, range(4)).round == 5
    assert grid.reports[2].survivors == 3  # the others do not wait for it
    assert grid.reports[3].survivors == 4


def test_a_drifted_member_is_named_and_caught_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its history is right and its weights are not: a bad disk, or another machine's arithmetic."""
    grid = Changing(tmp_path, 5)

    def drift() -> None:
        path = grid.run_dir(3) / "model"
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)

    grid.before[3] = drift
    run(grid, 4)
    assert "node 103 is left out: its model has drifted" in caplog.text
    assert [r.survivors for r in grid.reports] == [5, 5, 4, 5]
    reference = Reference(WEIGHTS)
    for partitions in (range(5), range(5), [0, 1, 2, 4], range(5)):
        reference.round(partitions)
    close(same(grid, range(5)), reference, tolerance(range(4), 4))


def test_a_sum_that_opens_for_nobody_is_void(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay damaged it on the way to everyone: the round is lost, the federation is not."""
    grid = Changing(tmp_path, 4)

    def damage(node: int, stage: str, content: RecordDict) -> RecordDict:
        name = f"{records.SUM}.0"
        record = content.get(records.STAGE)
        if name not in content or record is None or grid.round != 2:
            return content
        header = record["sums"][0]  # type: ignore[index]
        total = records.to_sealed(header, content[name])  # type: ignore[arg-type]
        data = np.array(total.data)
        data[::7] ^= 0x5A
        bad = Sealed(total.scheme, total.slot, total.senders, total.length, data)
        other = RecordDict(dict(content.items()))
        other[name] = records.from_sealed(bad)
        return other

    grid.rewrite = damage
    run(grid, 4)
    assert "the sum of round 2 opened for nobody: the round is void" in caplog.text
    reference = Reference(WEIGHTS)
    for _ in range(3):
        reference.round(range(4))
    model = same(grid, range(4))
    assert model.round == 4
    close(model, reference, tolerance(range(4), 3))


def test_a_round_that_too_few_answer_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Changing(tmp_path, 4)
    asked: list[int] = []

    def fate(node: int, stage: str, round_: int) -> Fate:
        if stage == "round" and round_ == 2:
            asked.append(node)
        return "dead" if stage == "round" and round_ == 2 and len(asked) <= 4 else None

    grid.fate = fate
    run(grid, 3)
    assert "round 2: 0 updates, 3 needed" in caplog.text
    assert "asking again (attempt 2)" in caplog.text
    assert [r.survivors for r in grid.reports] == [4, 4, 4]
    assert same(grid, range(4)).round == 3


def test_a_joiner_that_breaks_the_agreement_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The epoch goes on without it, and it is asked again in a while, not in every round."""
    grid = Changing(tmp_path, 5)
    grid.away = lambda r: {104} if r == 1 else set()
    grid.fate = lambda node, stage, r: "dead" if node == 104 and stage == "share" else None
    run(grid, 4)
    assert [r.survivors for r in grid.reports] == [4] * 4
    assert grid.stages("share").count(104) == 1
    assert same(grid, range(4)).round == 4


class TestInitial:
    """initial_arrays=None: a member makes the first model, and the server never sees it."""

    @staticmethod
    def made(context: Context) -> ArrayRecord:
        return initial()

    def test_all_members_start_from_it(self, tmp_path: Path) -> None:
        grid = Changing(tmp_path, 4, app=Node(HEMod(initial=self.made)))
        strategy = flashe_fedavg(max_examples=MAX)
        result = strategy.start(grid, None, num_rounds=3)
        reference = Reference(WEIGHTS)
        for _ in range(3):
            reference.round(range(4))
        close(same(grid, range(4)), reference, tolerance(range(4), 3))
        path = tmp_path / "model.flhe"
        path.write_bytes(b"".join(records.to_pieces(result.arrays)))
        assert open_checkpoint(path, tmp_path / "node-0").round == 3

    def test_no_weight_of_it_passes_the_server(self, tmp_path: Path) -> None:
        grid = Changing(tmp_path, 3, app=Node(HEMod(initial=self.made)))
        flashe_fedavg(max_examples=MAX).start(grid, None, num_rounds=1)
        weights = start_arrays()["w"].tobytes()
        passed = [c for _, _, c in grid.sent] + [r.content for _, _, r in grid.replies]
        for content in passed:
            assert not any(weights in a.data for r in content.array_records.values()
                           for a in r.values())  # fmt: skip
            assert "arrays" not in content

    def test_nobody_can_make_one(self, tmp_path: Path) -> None:
        grid = Changing(tmp_path, 3)
        with pytest.raises(QuorumError, match="no member made an initial model"):
            flashe_fedavg(max_examples=MAX).start(grid, None, num_rounds=1)

    def test_the_next_member_makes_it(self, tmp_path: Path) -> None:
        grid = Changing(tmp_path, 4, app=Node(HEMod(initial=self.made)))
        silent: list[int] = []

        def fate(node: int, stage: str, round_: int) -> Fate:
            if stage == "initial" and not silent:
                silent.append(node)
            return "silent" if stage == "initial" and node in silent else None

        grid.fate = fate
        flashe_fedavg(max_examples=MAX).start(grid, None, num_rounds=2)
        assert same(grid, range(4)).round == 2


# --- server optimizers ---

STEPS = 2**31 - 1
CASES: dict[str, tuple[ServerOptimizer, type[FedAvg], dict[str, float]]] = {
    "fedadam": (ServerOptimizer("fedadam", eta=0.05), FedAdam, {"eta": 0.05}),
    "fedyogi": (ServerOptimizer("fedyogi", eta=0.05), FedYogi, {"eta": 0.05}),
    "fedavgm": (
        ServerOptimizer("fedavgm", eta=0.5, momentum=0.9),
        FedAvgM,
        {"server_learning_rate": 0.5, "server_momentum": 0.9},
    ),
}


def floats() -> Arrays:
    return {n: a for n, a in start_arrays().items() if a.dtype == np.float32 and a.size}


@pytest.mark.parametrize("name", CASES)
def test_server_optimizers_are_flowers_own(tmp_path: Path, name: str) -> None:
    """Ten rounds under FLASHE at 32 bits beside Flower's plaintext strategy on the same nodes."""
    optimizer, plain, how = CASES[name]
    encrypted = Changing(tmp_path / "he", 4)
    flashe_fedavg(bits=32, max_examples=MAX, server_optimizer=optimizer).start(
        encrypted, records.from_numpy(floats()), num_rounds=10
    )
    beside = Plainly(tmp_path / "plain", 4, app=Node())
    result = plain(**how).start(beside, records.from_numpy(floats()), num_rounds=10)
    model = same(encrypted, range(4))
    moved = max(float(np.abs(a - model.masters[n]).max()) for n, a in floats().items())
    assert moved > 0.05  # an optimizer that does nothing would pass what follows
    for key, array in result.arrays.items():
        np.testing.assert_allclose(model.masters[key], array.numpy(), atol=1e-6, rtol=0)


class Plainly(Puppets):
    """A grid for Flower's own strategies, which wait for everyone."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return super(Puppets, self).send_and_receive(messages, timeout=timeout)


def test_late_joiners_get_the_optimizers_memory(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 5)
    grid.away = lambda r: {104} if r < 4 else set()
    run(grid, 6, server_optimizer=ServerOptimizer("fedadam"))
    model: Model = same(grid, range(5))
    assert set(model.moments) == {"m", "v"}
    assert np.abs(model.moments["m"]).max() > 0


# --- the rules of membership, by themselves ---


def test_who_is_away_for_long_has_left() -> None:
    m = Membership(patience=2, rekey_every=0)
    for round_, due in ((1, ""), (2, ""), (3, "1 left"), (4, "1 left")):
        m.see(round_, [1, 2, 3], [1, 2])
        assert m.due(round_, 1, [1, 2, 3], [1, 2]) == due


def test_who_comes_back_in_time_has_not() -> None:
    m = Membership(patience=2, rekey_every=0)
    for round_, there in ((1, [1, 2]), (2, [1, 2, 3]), (3, [1, 2]), (4, [1, 2])):
        m.see(round_, [1, 2, 3], there)
        assert m.due(round_, 1, [1, 2, 3], there) == ""


def test_who_broke_off_is_asked_again_later() -> None:
    m = Membership(patience=2, rekey_every=0)
    m.changed(5, [1, 2, 3, 4], [1, 2, 3])
    assert [bool(m.due(r, 5, [1, 2, 3], [1, 2, 3, 4])) for r in (6, 5 + BARRED)] == [False, True]


@pytest.mark.parametrize("name", ["retries", "patience", "rekey_every", "checkpoint_every"])
def test_counts_are_checked_when_built(name: str) -> None:
    for value in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=name):
            flashe_fedavg(**{name: value})

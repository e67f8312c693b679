"""ESAFL's rounds: keys that nobody dealt, sums of all members, and new keys where one is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flhe.errors import QuorumError
from flhe.keys.agreement import dealt, joint
from flhe.keys.agreement.epoch import Epoch
from flhe.node.store import Store
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.joint_key import JointKey
from flhe.strategies import EsaflFedAvg, HEStrategy
from tests.strategies.puppets import Fate, Puppets, fail_once, lie, lose, pin, play, same
from tests.strategies.reference import Reference, close, tolerance

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, start: Any = None, **how: Any) -> HEStrategy:
    return play(EsaflFedAvg, grid, rounds, start=start, **{"keys": "joint", **how})[0]


def key_of(grid: Puppets, node: int) -> JointKey:
    return JointKey.from_bytes(grid.epoch(node).scheme_secret)


def dying(
    path: Path, nodes: int, victim: int, round_: int, how: str, stage: str = "round"
) -> Puppets:
    """One node is killed when a stage of a round reaches it, or its answer lost, and stays dead."""
    grid = Puppets(path, nodes)
    grid.drop(round_, stage, how, [victim])
    grid.for_good = True
    return grid


def check(grid: Puppets, rounds: list[Iterable[int]], rest: Sequence[int]) -> None:
    assert grid.survivors == [len(list(present)) for present in rounds]
    close(same(grid, rest), Reference.of(rounds), 2 * tolerance(rest, len(rounds)))


# --- dropping out ---


@pytest.mark.parametrize("how", ["dead", "lost"])
def test_a_round_goes_on_with_new_keys(tmp_path: Path, how: str) -> None:
    """Killed before it trains, or its answer lost: the others encrypt the same updates again.

    They have erased their old keys before they draw new ones.
    """
    grid = dying(tmp_path, 5, 2, 2, how)
    before: list[JointKey] = []
    grid.before[2] = lambda: before.extend(key_of(grid, i) for i in range(5))
    seen: list[bool] = []

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "joint" and grid.killed:
            store = Store(grid.homes[node - 100])
            kept = [Epoch.from_bytes(store.read(i)) for i in store.names("epochs/*")]
            seen.append(any(epoch.scheme_secret for epoch in kept))
        return reply

    grid.forge = forge
    run(grid, 3)
    assert seen == [False] * 4
    rest = [0, 1, 3, 4]
    check(grid, [range(5), rest, rest], rest)
    # Nobody trained twice, and nobody has a key of the time before.
    assert [(grid.trainings(i), grid.epochs(i)) for i in rest] == [(3, 2)] * 4
    assert not any(np.array_equal(key_of(grid, i).own, before[i].own) for i in rest)


def test_several_drop_out_one_after_the_other(tmp_path: Path) -> None:
    """Each costs the others their keys, also those that they are about to make, and no retry."""
    grid = Puppets(tmp_path, 7)
    grid.app.examples = lambda p: 10

    def fate(node: int, stage: str, round_: int) -> Fate:
        """One more of them with every key that the others have agreed on."""
        drawn = grid.stages_of(100).count("joint")
        if node in [106, 105, 104][:drawn] and round_ == 2 and stage == "round":
            return "dead"
        return "dead" if node == 103 and drawn > 1 and stage == "joint" else None

    grid.fate = fate
    run(grid, 3, retries=1)
    assert grid.survivors[:2] == [7, 3]


def test_three_cannot_shrink_and_wait_for_the_third(tmp_path: Path) -> None:
    grid = Puppets(tmp_path / "once", 3)
    fail_once(grid, "round", 2, node=101)
    run(grid, 2)
    assert grid.survivors == [3, 3]
    assert grid.epochs(0) == 1  # one key, another attempt
    with pytest.raises(QuorumError, match="round 2: 2 updates, 3 needed"):
        run(dying(tmp_path / "for good", 3, 1, 2, "dead"), 3)


@pytest.mark.parametrize("stage", ["round", "update"])
def test_a_drop_out_while_thresholds_are_fitted(tmp_path: Path, stage: str) -> None:
    """Before the mean squares are opened the round goes on; after, the next one trains again."""
    grid = dying(tmp_path, 5, 2, 2, "dead", stage)
    run(grid, 4, clip="exchange", bits=20)
    assert grid.survivors == [5, 4 if stage == "round" else 0, 4, 4]
    assert same(grid, [0, 1, 3, 4]).round == 4


# --- dealt keys ---


def with_dealt_keys(tmp_path: Path, size: int, outsiders: int = 0) -> Puppets:
    """Sites of one roster with a dealt key each, but for the last ones."""
    grid = Puppets(tmp_path, size)
    roster, ids = pin(grid, range(size), size, schemes=("esafl",))
    left_out = [one.public for one in ids[size - outsiders :]]
    files = dealt.deal(roster, Esafl(keys="dealt"), left_out)
    for i, one in enumerate(ids):
        path = tmp_path / f"key-{i}"
        grid.contexts[100 + i].node_config["flhe-dealt-key"] = str(path)
        if one.public in files:
            path.touch(0o600)
            path.write_bytes(files[one.public].to_bytes())
    return grid


def test_dealt_keys_are_for_those_they_were_dealt_to(tmp_path: Path) -> None:
    grid = with_dealt_keys(tmp_path, 5, outsiders=1)
    with pytest.raises(QuorumError):  # the fifth site has none, and the others' are without it
        run(grid, 1, keys="dealt")


def test_a_run_that_ends_on_a_void_round_can_be_resumed(tmp_path: Path) -> None:
    """With no retries the first void round ends the run; the next run begins behind it."""
    how = {"clip": "exchange", "bits": 20, "retries": 0, "state_dir": tmp_path / "server"}
    how["patience"] = 0  # a new epoch as soon as one is away
    grid = Puppets(tmp_path, 5)
    grid.drop(2, "update", "dead", [2])
    with pytest.raises(QuorumError, match="void"):  # its mean squares are open, and one is away
        run(grid, 4, **how)
    last = Puppets(tmp_path, 5, run_id=9)
    run(last, 4, start={"resume": True}, **how)
    assert same(grid, range(5)).round == 4


# --- what must not be lost ---


def test_a_lost_answer_costs_dealt_keys_nothing(tmp_path: Path) -> None:
    """They are for all sites, who are asked again; and no others are agreed on."""
    grid = with_dealt_keys(tmp_path, 4)
    lost: list[None] = []
    lie(grid, 101, "round", lambda reply: lost or lost.append(lose(reply)), 2)
    run(grid, 3, keys="dealt")
    check(grid, [range(4)] * 3, range(4))
    assert grid.epochs(0) == 1
    assert "joint" not in grid.stages_of(100)
    assert key_of(grid, 1).own.tobytes() in (tmp_path / "key-1").read_bytes()


def test_a_stranger_costs_dealt_keys_nothing(tmp_path: Path) -> None:
    """A site of the roster without a file comes: the keys of the others stay."""
    grid = with_dealt_keys(tmp_path, 5, outsiders=1)
    grid.fate = lambda node, _stage, _round: "dead" if node == 104 and not grid.reports else None
    run(grid, 3, keys="dealt")
    assert grid.survivors == [4, 4, 4]


def test_a_bad_share_of_who_joins_leaves_the_others_their_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every agreement with it fails, once the others' keys are gone: they agree among themselves."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda round_: {104} if round_ < 2 else set()
    honest = joint._masked

    def masked(agreed: Epoch, own: Any) -> bytes:
        lanes = np.frombuffer(honest(agreed, own), "<u4")
        bad = agreed.members[agreed.rank] == publics[-1]
        return (lanes + np.uint32(100_000 if bad else 0)).tobytes()

    publics = [b""]
    monkeypatch.setattr(joint, "_masked", masked)
    grid.before[2] = lambda: publics.append(Store(grid.homes[4]).identity().public)
    run(grid, 4)
    assert grid.survivors == [4, 4, 4, 4]
    assert len({key_of(grid, i).total.tobytes() for i in range(4)}) == 1


def test_min_replies_holds_for_sums_of_all_too(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 6)
    grid.unreached = {(2, "round"): [3, 4, 5]}
    with pytest.raises(QuorumError, match="6 needed"):
        run(grid, 3, min_replies=5)
    assert grid.survivors == [6]


def test_without_a_key_nothing_is_trained_or_sent_again(tmp_path: Path) -> None:
    """A new epoch that never began has cost them theirs: what was sent opens for nobody any more."""
    how = {"state_dir": tmp_path / "server"}
    grid = Puppets(tmp_path, 4)
    run(grid, 1, **how)
    node = Store(grid.homes[0])
    (epoch_id,) = node.names("epochs/*")
    bare = dataclasses.replace(Epoch.from_bytes(node.read(epoch_id)), scheme_secret=b"")
    node.replace_erasing(epoch_id, bare.to_bytes())
    again = Puppets(tmp_path, 4, run_id=8)
    run(again, 3, start={"resume": True}, **how)
    stages = again.stages_of(100)
    assert stages.index("joint") < stages.index("round")
    assert again.survivors == [4, 4]

"""Whoever is killed, and wherever: the run goes on to the same model, or a round lacks one update."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.node.checkpoint import open_checkpoint
from flhe.node.store import Store
from flhe.strategies import save_sealed
from tests.strategies.killing import SERVER, Scene, Step, in_plain

pytestmark = pytest.mark.usefixtures("quick", "silence")


STAGED: dict[str, Any] = {"top_k": 0.5, "warmup": 0, "clip": "exchange", "masking": "adaptive"}
"""Mean squares, supports, update: all stages that a round can have."""


JOINT: dict[str, Any] = {"scheme": "esafl"}
"""Sums of all members only: who is missing makes the others agree on new keys, amid the round."""


@pytest.fixture
def silence() -> Iterator[None]:
    """Hundreds of runs: what they log would fill the memory. A failure names its step."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(path: Path, kill: Step | None = None, **scene: Any) -> Scene:
    """A run on empty disks, with everything checked that holds wherever somebody is killed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    stage = Scene(path, kill=kill, **scene)
    with pytest.MonkeyPatch.context() as patch:
        stage.watch(patch)
        stage.play()
    check(stage)
    return stage


def check(scene: Scene) -> None:
    """All members are at one model: the one that the sums in it make without encryption."""
    assert not scene.broken, scene.broken
    assert len(scene.members) >= 3
    assert list(scene.senders) == list(range(1, scene.rounds + 1))
    models = [scene.model(i) for i in scene.members]
    assert len({b"".join(model.chunks()) for model in models}) == 1
    assert models[0].history == scene.ledger.history
    if "clip" not in scene.terms:  # else what is sent is a part, or clipped anew
        for name, array in in_plain(scene.senders.values()).items():
            np.testing.assert_array_equal(models[0].masters[name], array)
    box = scene.path / "result"
    assert scene.result is not None
    save_sealed(scene.result, box)
    opened = open_checkpoint(box, scene.homes[scene.members[0]])
    assert b"".join(opened.chunks()) == b"".join(models[0].chunks())
    told = {report.round: report.survivors for report in scene.reports}
    assert all(told[r] == len(senders) for r, senders in scene.senders.items() if r in told)


def kill_at_each_step(
    path: Path, who: int, *hows: str, every: int = 1, **scene: Any
) -> Counter[str]:
    """Kill `who` at each of its steps, or at every second; returns how often what came of it."""
    quiet = play(path, **scene)
    assert quiet.restarts == 1
    first = tuple(range(scene["nodes"]))
    assert quiet.senders[1] == first
    assert quiet.senders[2] == (*first, len(first))  # one joined
    outcomes: Counter[str] = Counter()
    failures = []
    # By kind first, or every second one would always be of the same kind.
    steps = sorted(quiet.points(who, *hows), key=lambda step: (step.how, step.index))
    for step in steps[::every]:
        try:
            killed = play(path, step, **scene)
            assert len(killed.steps[who]) > step.index
            missing = {r: {*s} - {*killed.senders[r]} for r, s in quiet.senders.items()}
            if who == SERVER:  # it forgets nothing, and nobody is left out for its sake
                assert killed.restarts > 1
                assert not any(missing.values())
            assert all(left <= {who} for left in missing.values())
        except Exception as error:  # all that go wrong are told of
            what = f"{type(error).__name__}: {error}"[:400]
            failures.append(f"{step.how} {step.index}, {quiet.steps[who][step.index]}: {what}")
        else:
            outcomes["a round lacks its update" if any(missing.values()) else "same model"] += 1
    assert not failures, f"{outcomes}\n" + "\n".join(failures)
    return outcomes


def test_the_server_may_be_killed_at_each_step(tmp_path: Path) -> None:
    outcomes = kill_at_each_step(tmp_path / "disks", SERVER, "before", nodes=3, rounds=2)
    assert outcomes["same model"] > 100


def test_a_node_may_be_killed_at_each_step(tmp_path: Path) -> None:
    outcomes = kill_at_each_step(tmp_path / "disks", 1, "before", "amid", nodes=4, rounds=2)
    assert min(outcomes.values()) > 20


def test_the_server_may_be_killed_in_a_staged_round(tmp_path: Path) -> None:
    """Every second step; the sweep has all of them."""
    outcomes = kill_at_each_step(
        tmp_path / "disks", SERVER, "before", every=2, nodes=3, rounds=2, terms=STAGED
    )
    assert outcomes["same model"] > 60


def test_a_node_may_be_killed_in_a_staged_round(tmp_path: Path) -> None:
    """Every second step; the sweep has all of them."""
    outcomes = kill_at_each_step(
        tmp_path / "disks", 1, "before", "amid", every=2, nodes=4, rounds=2, terms=STAGED
    )
    assert min(outcomes.values()) > 10


@pytest.mark.parametrize(
    ("who", "hows", "nodes"), [(SERVER, ("before",), 3), (1, ("before", "amid"), 4)]
)
def test_anybody_may_be_killed_where_sums_are_of_all(
    tmp_path: Path, who: int, hows: tuple[str, ...], nodes: int
) -> None:
    """Every eighth step; the sweep has all of them."""
    scene = {"nodes": nodes, "rounds": 2, "terms": JOINT}
    assert kill_at_each_step(tmp_path / "disks", who, *hows, every=8, **scene)["same model"]


def test_a_mask_used_twice_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = play(tmp_path / "quiet", nodes=3, rounds=1)
    assert {use[1:] for use in quiet.masks} == {(1, 0, rank) for rank in range(3)}
    before_the_sum = Step(SERVER, quiet.steps[SERVER].index("replace sum-1"), "before")
    assert play(tmp_path / "killed", before_the_sum, nodes=3, rounds=1).restarts == 2
    monkeypatch.setattr(Store, "claim", lambda *_: None)
    with pytest.raises(AssertionError, match="a mask was used twice"):
        play(tmp_path / "careless", before_the_sum, nodes=3, rounds=1)


LARGE: list[dict[str, Any]] = [
    {},
    {"secret": True},
    {"how": {"rekey_every": 1}},
    {"terms": STAGED},
    {"terms": JOINT},
]


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", LARGE, ids=["plain", "secret", "rekey", "staged", "joint"])
@pytest.mark.parametrize("who", [SERVER, 0, 2, 4], ids=["server", "teller", "member", "joiner"])
def test_anybody_may_be_killed_at_each_step(
    tmp_path: Path, who: int, scene: dict[str, Any]
) -> None:
    hows = ("before", "amid", "torn", "after")
    assert kill_at_each_step(tmp_path / "disks", who, *hows, nodes=4, rounds=3, **scene)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_a_node_that_was_killed_is_a_member_again_before_long(tmp_path: Path) -> None:
    scene = {"nodes": 4, "rounds": 6}
    quiet = play(tmp_path / "disks", **scene)
    last = quiet.steps[1].index("create opened-5")
    for step in quiet.points(1, "before", "amid"):
        if step.index < last:
            killed = play(tmp_path / "disks", step, **scene)
            assert 1 in killed.members, step
            assert 1 in killed.senders[6], step

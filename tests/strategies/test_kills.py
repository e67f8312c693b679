"""Whoever is killed, and wherever, or runs out of disk: the run goes on to the same model, or a round
lacks one update."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest

from flhe.strategies import EsaflFedAvg
from tests.strategies.chaos import Fault, World, fast_directory

VICTIM = 1
STAGED: dict[str, Any] = {
    "top_k": 0.5,
    "small": 0,
    "warmup": 0,
    "clip": "exchange",
    "masking": "adaptive",
}
"""Mean squares, supports, update: all stages that a round can have."""

SCENES: dict[str, dict[str, Any]] = {
    "plain": {},
    "secret": {"secret": True},
    "rekey": {"how": {"rekey_every": 1}},
    "staged": {"how": STAGED},
    "joint": {"make": partial(EsaflFedAvg, keys="joint")},
}
"""The last: sums of all members only, so who is missing makes the others agree on new keys."""

Arm = Callable[[World], None]


@contextmanager
def played(arm: Arm, begun: bool, **scene: Any) -> Iterator[World]:
    """A run on empty disks, or one that goes on while a node joins, and one more round in peace.

    All that holds wherever somebody is killed has been checked.
    """
    world = World(fast_directory(), 4, **{"how": {}, **scene})
    try:
        if begun:
            assert world.advance(1) == "done"
            world.add()
        world.served.clear()
        arm(world)
        for _ in range(4):
            if world.advance(1) == "done":
                break
        world.calm()
        assert world.advance(1) == "done", world.outcomes
        assert not world.wrong, "\n".join(world.wrong)
        assert list(world.senders) == list(range(1, world.target + 1))
        yield world
    finally:
        world.close()


@cache
def quiet(begun: bool, scene: str = "plain") -> tuple[dict[int, set[int]], int, Counter[Any]]:
    """Where nobody is killed: senders by round, the server's operations, and how many writes there
    are over each message of the victim's; the server's own are under None."""
    counts: list[tuple[int, Counter[int | None]]] = []

    def count(world: World) -> None:
        advance = world.advance

        def advanced(rounds: int) -> Any:
            outcome = advance(rounds)
            over = [
                at if who == VICTIM else None for who, at in world.writes if who in (None, VICTIM)
            ]
            counts.append((world.operations, Counter(over)))
            return outcome

        world.advance = advanced  # type: ignore[method-assign]

    with played(count, begun, **SCENES[scene]) as world:
        return (world.senders, *counts[0])


def at_server(operations: int, writes: Counter[int | None], *, torn: bool = False) -> Iterator[Arm]:
    """Each of its operations on the grid, and each of its writes; the last may be cut short."""
    for name, count in (("server_dies", operations), ("server_dies_writing", writes[None])):
        for step in range(1, count + 1):
            yield partial(armed, **{name: step}, server_tears=torn)


def at_node(_: int, writes: Counter[int | None], *, torn: bool = False) -> Iterator[Arm]:
    """Each write over each message of the victim's, and the reply to it."""
    for message in sorted(at for at in writes if at is not None):
        deaths = [Fault("kill", n, torn=torn) for n in range(1, writes[message] + 1)]
        for fault in (*deaths, Fault("lose reply")):
            yield partial(armed, faults=[replace(fault, node=VICTIM, after=message - 1)])


torn_server, torn_node = partial(at_server, torn=True), partial(at_node, torn=True)


def armed(world: World, **fields: Any) -> None:
    """What is to go wrong in a world."""
    for name, value in fields.items():
        setattr(world, name, value)


def at_each(
    arms: Callable[..., Iterator[Arm]], *, begun: bool, every: int = 1, scene: str = "plain"
) -> Counter[str]:
    """Kill somebody at each of these steps, or at each `every`-th; what came of it, how often."""
    senders, *counts = quiet(begun, scene)
    outcomes: Counter[str] = Counter()
    for index, arm in enumerate(islice(arms(*counts), 0, None, every)):
        with played(arm, begun, **SCENES[scene]) as world:
            dead = any(outcome != "done" for outcome, _ in world.outcomes)
            missing = [senders[r] - found for r, found in world.senders.items() if r in senders]
            if dead:  # the server's memory is that of its disk, and nobody is left out for its sake
                assert not any(missing), (index, missing)
            assert all(left <= {VICTIM} for left in missing), (index, missing)
            outcomes["lacks an update" if any(missing) else "same senders"] += 1
            outcomes["resumed"] += dead
    return outcomes


SOME: list[Any] = [
    *((at_server, False, 89, "plain"), (at_server, True, 131, "plain")),
    *((at_node, False, 29, "plain"), (torn_node, True, 23, "plain")),
    *((at_server, True, 229, scene) for scene in ("staged", "joint")),
    *((at_node, True, 113, scene) for scene in ("staged", "joint")),
]
EACH: list[Any] = [
    pytest.param(arms, begun, 1, scene, marks=[pytest.mark.sweep, pytest.mark.timeout(3600)])
    for arms in (at_server, torn_server, at_node, torn_node)
    for begun in (False, True)
    for scene in SCENES
]


@pytest.mark.parametrize(("arms", "begun", "every", "scene"), [*SOME, *EACH])
def test_anybody_may_be_killed_at_each_step(arms: Any, begun: bool, every: int, scene: str) -> None:
    """At some of them; the sweep has all."""
    outcomes = at_each(arms, begun=begun, every=every, scene=scene)
    assert every > 1 or outcomes["same senders"]
    if arms in (at_server, torn_server):
        assert outcomes["resumed"]
    elif scene == "plain":
        assert min(outcomes["lacks an update"], outcomes["same senders"]) > 0


def no_room() -> OSError:
    return OSError(28, "No space left on device")


def test_a_node_whose_disk_is_full_loses_a_round_at_most() -> None:
    """Over three messages in a row: it says so, and nothing is encrypted or opened twice."""
    _, _, writes = quiet(begun=True)
    said = []
    for message in sorted(at for at in writes if at is not None)[::5]:
        faults = [Fault("kill", 1, VICTIM, after=message - 1)]
        faults += [Fault("kill", 1, VICTIM) for _ in range(2)]
        with played(partial(armed, fails=no_room, faults=faults), begun=True) as world:
            assert {outcome for outcome, _ in world.outcomes} == {"done"}
            assert all({0, 2, 3} <= found for found in world.senders.values())
            said.append(1015 in world.refused)  # not where nothing but a log was written
    assert any(said)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (no_room, r"cannot (write|remove) in the state directory: No space left on device"),
        (lambda: ConnectionError("no answer"), "no answer"),
    ],
    ids=["its disk is full", "its SuperLink is gone"],
)
def test_a_server_that_cannot_go_on_stops_and_is_resumed(fails: Any, says: str) -> None:
    """Under another run id and other node ids: a SuperLink that is started anew knows nothing."""
    senders, operations, writes = quiet(begun=True)
    full = fails is no_room
    name, count = ("server_dies_writing", writes[None]) if full else ("server_dies", operations)
    for step in range(1, count + 1, count // 2):
        with played(partial(armed, fails=fails, **{name: step}), begun=True) as world:
            (text,) = (text for outcome, text in world.outcomes if outcome == "stopped")
            assert re.fullmatch(says, text)
            assert world.senders.items() >= senders.items()

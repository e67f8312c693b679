"""A disk without room, or a SuperLink that is gone, whenever it may be: the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flhe.errors import StoreError
from flhe.mods import HEMod
from flhe.strategies import HEStrategy
from tests.strategies.killing import SERVER, Killed, Scene, Step
from tests.strategies.test_kills import check, silence  # noqa: F401  # a fixture

pytestmark = pytest.mark.usefixtures("quick", "silence")

NO_ROOM = "cannot write in the state directory: No space left on device"
ROOM = ("make_private", "create", "replace", "append", "append_line")
"""Writes that take room on a disk."""
LINK = ("push", "pull")
GONE = "the SuperLink does not answer"


@dataclass
class Failing(Scene):
    """Somebody's steps of some kinds fail, from one of them on; nobody's process is killed.

    Parameters
    ----------
    kinds : tuple of str
        Which steps.
    error : callable
        What they fail with.
    span : int
        How many of them fail.
    """

    kinds: tuple[str, ...] = ROOM
    error: Callable[[], Exception] = field(default=lambda: StoreError(NO_ROOM))
    span: int = 1
    failed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)

    def step(
        self,
        who: int,
        name: str,
        action: Callable[[], Any] = lambda: None,
        torn: Callable[[], Any] = lambda: None,
    ) -> Any:
        taken = self.steps.setdefault(who, [])
        due = self.kill is not None and self.kill.who == who and self.kill.index <= len(taken)
        if due and name.split(maxsplit=1)[0] in self.kinds and len(self.failed) < self.span:
            taken.append(name)
            self.failed.append(name)
            raise self.error()
        return super().step(who, name, action, torn)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """As before; a run that ends with the error is started again, and the mod never raises."""
        super().watch(patch)
        start = HEStrategy.start

        def started(strategy: HEStrategy, *args: Any, **how: Any) -> Any:
            try:
                return start(strategy, *args, **how)
            except (StoreError, ConnectionError) as error:
                self.ended.append(str(error))
                raise Killed from None

        patch.setattr(HEStrategy, "start", started)
        answer = HEMod.__call__

        def answered(mod: HEMod, *args: Any) -> Message:
            try:
                reply = answer(mod, *args)
            except Exception as error:
                self.broken.append(f"an exception left the mod: {error!r}")
                raise
            if reply.has_error():
                self.codes.add(reply.error.code)
            return reply

        patch.setattr(HEMod, "__call__", answered)


def play(path: Path, kill: Step | None = None, **scene: Any) -> Failing:
    """A run on empty disks, with all checked that holds whoever fails."""
    path.mkdir(parents=True)
    stage = Failing(path, kill=kill, **scene)
    with pytest.MonkeyPatch.context() as patch:
        stage.watch(patch)
        stage.play()
    check(stage)
    return stage


def fail_at_each(path: Path, who: int, every: int, **scene: Any) -> list[Failing]:
    """One run for each `every`-th step of `who` that can fail."""
    kinds = scene.get("kinds", ROOM)
    steps = play(path / "quiet", **scene).steps[who]
    at = [i for i, name in enumerate(steps) if name.split(maxsplit=1)[0] in kinds]
    return [play(path / f"{i}", Step(who, i, "fails"), **scene) for i in at[::every]]


def test_a_node_whose_disk_is_full_loses_a_round_at_most(tmp_path: Path) -> None:
    """At every twelfth of its writes, and for three of them: nothing is encrypted or opened twice."""
    runs = fail_at_each(tmp_path, 1, 12, nodes=4, rounds=2, span=3)
    assert len(runs) > 3
    for run in runs:
        assert run.failed
        assert run.restarts == 1
        assert run.ended == []
        assert all({0, 2, 3} <= set(senders) for senders in run.senders.values())
        assert 1015 in run.codes


def test_a_server_whose_disk_is_full_stops_and_is_resumed(tmp_path: Path) -> None:
    runs = fail_at_each(tmp_path, SERVER, 3, nodes=3, rounds=2)
    assert len(runs) > 3
    for run in runs:
        assert run.ended == [NO_ROOM]
        assert run.restarts >= 2
        assert all({0, 1, 2} <= set(senders) for senders in run.senders.values())


def test_a_run_whose_superlink_is_gone_stops_and_is_resumed(tmp_path: Path) -> None:
    """Under another run id and other node ids: a SuperLink that is started anew knows nothing."""
    scene = {"kinds": LINK, "error": lambda: ConnectionError(GONE)}
    runs = fail_at_each(tmp_path, SERVER, 18, nodes=3, rounds=2, **scene)
    assert len(runs) > 3
    for run in runs:
        assert run.ended == [GONE]
        assert run.restarts >= 2
        assert all({0, 1, 2} <= set(senders) for senders in run.senders.values())

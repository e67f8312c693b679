"""Whatever is lost, late, doubled or killed: what must always hold does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.strategies.chaos import MAX_NODES, Fault, What, World, fast_directory

STAGES = ["", "evaluate", "sync", "status", "checkpoint"]
STAGES += ["advertise", "share", "confirm", "initial"]

nodes = st.integers(0, MAX_NODES - 1)
moments = st.integers(0, 40)
"""Operations of the server into its next run; 0 is before it."""
WHERE: dict[str, Any] = {
    "node": nodes,
    "stage": st.sampled_from(["round"] * 4 + ["evaluate"] * 2 + STAGES),
    "after": st.integers(0, 2),
}
KINDS = st.sampled_from([what for what in get_args(What) if what != "kill"])
disturbed = st.builds(Fault, KINDS, st.sampled_from((1, 9, 30, 61, 200)), **WHERE)
killed = st.builds(Fault, st.just("kill"), st.integers(1, 30), **WHERE, torn=st.booleans())
faults = disturbed | disturbed | killed
"""Messages that are lost, late or doubled, and nodes that die over one."""


class Chaos(RuleBasedStateMachine):
    """Faults are armed, then the server runs; see `World` for what is watched meanwhile."""

    world: Any = None

    @invariant()
    def nothing_was_wrong(self) -> None:
        assert self.world is None or not self.world.wrong, "\n".join(self.world.wrong)

    def teardown(self) -> None:
        if self.world is not None:
            try:
                self.goes_on()
                self.nothing_was_wrong()
            finally:
                self.world.close()

    @initialize(
        size=st.integers(3, 4),
        secret=st.booleans(),
        masking=st.sampled_from(["double", "single", "adaptive"]),
        top_k=st.sampled_from([None, None, 0.3]),
        warmup=st.integers(0, 1),
        small=st.just(0),  # all arrays of these models are small
        clip=st.sampled_from([1.0, 1.0, "history", "exchange"]),
        patience=st.integers(0, 2),
        retries=st.integers(0, 2),
        rekey_every=st.sampled_from([0, 0, 2]),
        checkpoint_every=st.sampled_from([0, 1, 10]),
        fraction_evaluate=st.sampled_from([1.0, 0.5, 0.0]),
        calm=st.booleans(),
    )
    def begin(self, size: int, secret: bool, calm: bool, **how: Any) -> None:
        self.world = World(fast_directory(), size, how, secret=secret)
        if calm:
            self.world.advance(1)

    # --- the server runs ---

    @rule(faults=st.lists(faults, min_size=2, max_size=8), rounds=st.integers(1, 2))
    def storm(self, faults: list[Fault], rounds: int) -> None:
        for fault in faults:
            self.world.faults.append(replace(fault, node=self.place(fault.node)))
        self.world.advance(rounds)

    @rule(
        faults=st.lists(faults, max_size=4),
        operation=st.integers(1, 60),
        write=st.none() | st.integers(1, 30),
        rounds=st.integers(1, 2),
    )
    def storm_and_end(
        self, faults: list[Fault], operation: int, write: int | None, rounds: int
    ) -> None:
        if write is None:
            self.world.server_dies = operation
        else:
            self.world.server_dies_writing = write
        self.storm(faults, rounds)

    @rule()
    def advance(self) -> None:
        self.world.advance(1)

    # --- who is there, and with what on disk ---

    @rule(node=nodes, there=st.booleans(), when=moments)
    def move(self, node: int, there: bool, when: int) -> None:
        site = self.world.sites[self.place(node)]
        self.world.later(when, lambda: setattr(site, "there", there))

    @precondition(lambda self: len(self.world.sites) < MAX_NODES)
    @rule(when=moments)
    def join(self, when: int) -> None:
        if len(self.world.sites) + len(self.world.plans) < MAX_NODES:
            self.world.later(when, self.world.add)

    @rule(node=nodes, leave=st.booleans(), when=moments)
    def leave(self, node: int, leave: bool, when: int) -> None:
        config = self.world.sites[self.place(node)].config
        self.world.later(when, lambda: config.update({"flhe-leave": leave}))

    @rule(what=st.sampled_from(["wipe", "save", "put_back"]), node=nodes, when=moments)
    def disk(self, what: str, node: int, when: int) -> None:
        index = self.place(node)
        self.world.later(when, lambda: getattr(self.world, what)(index))

    @rule(when=st.integers(1, 40))
    def rekey(self, when: int) -> None:
        self.world.later(when, self.world.rekey)

    def goes_on(self) -> None:
        """A federation that is left in peace gets on, unless nobody has its model any more."""
        self.world.calm()
        for _ in range(3):
            if self.world.advance(1) == "done":
                return
        text = self.world.outcomes[-1][1]
        absent = ("no connected member", "too few who are connected hold the model")
        assert text.startswith(absent), text

    def place(self, node: int) -> int:
        return node % len(self.world.sites)


SWEEP = [pytest.mark.sweep, pytest.mark.timeout(0)]


@pytest.mark.parametrize(("runs", "steps"), [(3, 10), pytest.param(2000, 12, marks=SWEEP)])
def test_some_runs(runs: int, steps: int) -> None:
    how = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Chaos, settings=how)

"""Whatever a relay asks, and whatever becomes of its messages: what must always hold does."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.strategies import watching
from tests.strategies.relay import KINDS, SIZE, VICTIM, Relay
from tests.strategies.watching import Fault, fast_directory, run_machine

fates = st.none() | watching.faults((1, 9, 11, 35), 14)
storms = st.lists(fates, min_size=SIZE, max_size=SIZE)
ranks = st.integers(0, SIZE - 1)
modes = st.sampled_from(["double", "single"])
sets = st.sets(ranks, min_size=1).map(sorted)
enough = st.sets(ranks, min_size=SIZE - 1).map(sorted)
stages = ("round", "update", "consist", "unmask", "evaluate", "sync", "status", "checkpoint")


class Machine(watching.Machine):
    """A relay of any kind of nodes; see `Watch` for what must hold."""

    kind = "dense"
    honest: bool
    world: Relay | None = None

    @initialize(honest=st.booleans(), mode=modes, rounds=st.integers(0, 2))
    def begin(self, honest: bool, mode: str, rounds: int) -> None:
        self.world = Relay(fast_directory(), self.kind)
        self.honest, self.world.mode = honest, mode
        self.world.agree(range(SIZE))
        for _ in range(rounds):
            self.world.calm_round()

    # --- the federation goes on ---

    @rule(storms=st.lists(storms, min_size=1, max_size=3))
    def go(self, storms: list[list[Fault | None]]) -> None:
        """A stage or some, in which messages are lost, late or doubled, and nodes die."""
        for storm in storms:
            self.world.go(storm)

    @rule(stages=st.integers(1, 5))
    def go_on(self, stages: int) -> None:
        for _ in range(stages):
            self.world.go()

    @rule(seconds=st.sampled_from([1, 5, 10, 60]))
    def wait(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule(round_=st.booleans())
    def move_on(self, round_: bool) -> None:
        """Another attempt, or another round, with nothing said to anybody."""
        network = self.world
        round_ = round_ or (self.honest and network.stage == "evaluate")
        network.round += round_
        network.attempt = 0 if round_ else network.attempt + 1
        network.stage = "round"

    @rule(left_out=st.none() | ranks, stop=st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
    def agree(self, left_out: int | None, stop: int) -> None:
        if self.honest:
            self.world.finish()
        self.world.agree([i for i in range(SIZE) if i != left_out], stop)

    # --- what relays should not do ---

    @rule(back=st.integers(0, 7) | st.integers(0, 1 << 30), fate=fates)
    def repeat(self, back: int, fate: Fault | None) -> None:
        """Any message that was ever sent, again; mostly one of the last."""
        sent = self.world.sent
        if sent:
            self.world.repeat(sent[-1 - back % len(sent)], fate)
            self.world.pass_time(0)

    @rule(rank=ranks, stage=st.sampled_from(stages), fate=fates, mode=modes)
    def ask(self, rank: int, stage: str, fate: Fault | None, mode: str) -> None:
        """A stage out of turn."""
        network = self.world
        signing = stage in ("consist", "unmask")
        if signing and (self.honest or not network.terms.scheme.per_sum_keys):
            return  # who signs a set is spent for the round, and an honest relay needs it yet
        if network.confirms:
            here, network.mode = network.mode, mode
            network.ask(rank % len(network.members), stage, fate)
            network.pass_time(0)
            network.mode = here

    @precondition(lambda self: not self.honest and self.world.terms.scheme.per_sum_keys)
    @rule(proposals=st.lists(st.tuples(enough, enough), min_size=1, max_size=3))
    def propose(self, proposals: list[tuple[list[int], list[int]]]) -> None:
        """Sets of survivors, each to some members; then who signed one is asked for its sum."""
        network = self.world
        for _ in range(3):
            if network.stage == "round":
                network.go()
        for among, who in proposals:
            known = [rank for rank in among if rank in network.here.updates]
            for stage in ("consist", "unmask") if network.confirms and known else ():
                for rank in who:
                    if rank < len(network.members):
                        what = {"survivors": known} if stage == "consist" else {"among": known}
                        network.ask(rank, stage, **what)
                network.pass_time(0)

    @precondition(lambda self: not self.honest and self.world.tries)
    @rule(rank=ranks, which=st.integers(0, 1 << 30), among=sets, fate=fates)
    def split(self, rank: int, which: int, among: list[int], fate: Fault | None) -> None:
        """Another sum of any attempt, to one member."""
        network = self.world
        where = sorted(network.tries)[which % len(network.tries)]
        known = [r for r in among if r in network.tries[where].updates]
        if network.confirms and known:
            network.split(rank % len(network.members), where, known, fate)

    # --- nodes ---

    @rule(node=ranks)
    def restart(self, node: int) -> None:
        self.world.restart(node)

    @rule(back=st.booleans())
    def copy(self, back: bool) -> None:
        """A copy of a node's directory is made, or put in its place."""
        (self.world.put_back if back else self.world.save)(VICTIM)

    @rule(stages=st.integers(1, 5), mode=modes)
    def roll_back(self, stages: int, mode: str) -> None:
        """A node is taken back to before some stages, and asked for them again."""
        network = self.world
        network.save(VICTIM)
        begun = len(network.sent)
        self.go_on(stages)
        network.put_back(VICTIM)
        network.mode = mode
        for letter in [sent for sent in network.sent[begun:] if sent.site == VICTIM]:
            network.repeat(letter)
        network.pass_time(0)

    @invariant()
    def one_model(self) -> None:
        if self.world is not None:
            self.world.look()
            self.nothing_was_wrong()

    def goes_on(self) -> None:
        """A federation that is left in peace gets on, and everybody with it."""
        network = self.world
        if not self.honest:
            return
        network.pass_time(1000)
        network.finish()
        for _ in range(3):
            if network.agree(range(SIZE)):
                if not network.give_up():
                    return
                network.calm_round()
                break
        assert network.results, "a round in which nothing failed came to nothing"
        models = [site.model for site in network.sites]
        assert len({(model.round, model.history) for model in models}) == 1
        assert models[0].round == network.results[-1].total.slot.round


def play(kind: str, runs: int, steps: int) -> None:
    run_machine(type("Machine", (Machine,), {"kind": kind}), runs, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_some_runs(kind: str) -> None:
    play(kind, 3, 10)


@pytest.mark.sweep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_many_runs(kind: str) -> None:
    play(kind, 150, 25)

"""SASH's rounds: the exact sum of who is left, whoever drops out or lies, and no sum otherwise."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import Result

from flhe.errors import AlteredError, QuorumError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import Answer
from flhe.keys.agreement.circle import UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.thresholds import Thresholds
from flhe.mods import survivors
from flhe.node.journal import JOURNAL, Book
from flhe.node.store import Store
from flhe.strategies import HEStrategy, SashFedAvg
from tests.strategies.puppets import MASKED, Log, Node, Patch, Puppets, pin, play, told
from tests.strategies.reference import Reference, assert_like

pytestmark = pytest.mark.usefixtures("quick")


def run(
    grid: Puppets, rounds: int, unmask: str = "server", start: Any = None, **how: Any
) -> tuple[HEStrategy, Result]:
    return play(SashFedAvg, grid, rounds, start=start, clip=8.0, unmask=unmask, **how)


def numpy_of(result: Result) -> dict[str, Any]:
    return {n: a.numpy() for n, a in result.arrays.items()}


@pytest.mark.parametrize(
    ("nodes", "unmask"),
    [
        (3, "server"),
        (4, "clients"),
        *(pytest.param(6, unmask, marks=pytest.mark.sweep) for unmask in ("server", "clients")),
    ],
)
def test_any_dropouts_at_any_stage(tmp_path: Path, nodes: int, unmask: str) -> None:
    """Up to D_max of them, the sum is that of the others; a round for each subset, stage and way."""
    most = nodes - Thresholds(nodes, (nodes - 1) // 3).threshold
    subsets = [s for k in range(1, most + 1) for s in itertools.combinations(range(nodes), k)]
    ways = itertools.product(MASKED, ("dead", "lost"))
    cases = [(stage, how, subset) for stage, how in ways for subset in subsets]
    grid = Puppets(tmp_path, nodes)
    for round_, (stage, how, subset) in enumerate(cases, 1):
        grid.drop(round_, stage, how, subset)
    how = {"patience": len(cases), "fraction_evaluate": 0.0}
    _, result = run(grid, len(cases), unmask, **how)
    inside = [set(range(nodes)) - set(s if stage == "round" else ()) for stage, _, s in cases]
    reference = Reference.of(inside)
    assert grid.survivors == [len(senders) for senders in inside]
    if unmask == "server":
        assert_like(numpy_of(result), reference, 1e-5)
        return
    for model in [grid.model(i) for i in range(nodes)]:
        assert model.round == len(cases)
        assert_like(model.arrays(), reference, 1e-5)


NODES, LIAR = 6, 2
"""c = 1, t = 4: two may be missing."""


@pytest.fixture
def log(caplog: Log) -> Log:
    for name in ("flwr", "flhe"):
        logging.getLogger(name).propagate = True
    caplog.set_level(logging.INFO)
    return caplog


def reference(rounds: int) -> Reference:
    return Reference.of([range(NODES)] * rounds)


def lying(path: Path, stage: str, change: Callable[[ConfigRecord], dict[str, Any]]) -> Puppets:
    """Nodes, of which LIAR tells something else at a stage."""
    grid = Puppets(path, NODES)
    grid.lies([100 + LIAR], stage, lambda _, reply: told(reply).update(change(told(reply))))
    return grid


def other_share(grid: Puppets, answer: bytes) -> bytes:
    """An answer to UNMASK with another share in it, signed by its own member."""
    kept = masking.Agreed.from_bytes((grid.run_dir(LIAR) / "survivors").read_bytes())
    said = Answer.from_bytes(answer)
    elements = np.frombuffer(said.payload, "<u8").copy()
    elements[5] ^= np.uint64(1)
    node = Store(grid.homes[LIAR])
    epoch_bytes = node.read(node.names("epochs/*")[0])
    circle = SharingParameters.of(Epoch.from_bytes(epoch_bytes), 2048)
    header = circle.header(kept.slot, UNMASK, said.rank, circle.about(kept.survivors))
    signature = Envelope.seal(node.identity(), header, elements.tobytes()).signature
    return Answer(said.rank, elements.tobytes(), signature).to_bytes()


def test_a_wrong_answer_is_named_and_left_out(tmp_path: Path, log: Log) -> None:
    grid = lying(tmp_path, "unmask", lambda a: {"answer": other_share(grid, a["answer"])})
    _, result = run(grid, 2)
    assert_like(numpy_of(result), reference(2), 1e-5)
    rank = grid.ranked().index(LIAR)
    assert f"shares of ranks {rank} do not fit the others: left out" in log.text


def test_a_member_answers_for_itself_alone(tmp_path: Path, log: Log) -> None:
    grid, told_first = Puppets(tmp_path, NODES), list[bytes]()

    def copied(_: int, reply: Any) -> None:
        told_first.append(told(reply)["answer"])
        told(reply).update(answer=told_first[0])

    grid.lies([100, 101], "unmask", copied)
    run(grid, 1)
    assert len(told_first) > 1
    assert "it answers for another member" in log.text


def test_a_signature_that_does_not_verify_is_not_passed_on(tmp_path: Path) -> None:
    """Members would give no share for a set with it, and the round would be void."""
    grid = Puppets(tmp_path, NODES)
    first = lambda node: node == 100 + grid.ranked()[0]  # noqa: E731
    grid.lies(first, "consist", lambda _, reply: told(reply).update(signature=bytes(64)))
    run(grid, 1)
    assert grid.survivors == [NODES]


def test_a_few_who_complain_bar_nobody(tmp_path: Path) -> None:
    """As many as may collude could say of anybody that its shares do not open."""

    def complaint(answer: ConfigRecord) -> dict[str, Any]:
        del answer["signature"]
        return {"step": "consist", "bad": list(range(NODES))}

    grid = lying(tmp_path, "consist", complaint)
    strategy, result = run(grid, 2)
    assert strategy._fed.barred == set()
    assert_like(numpy_of(result), reference(2), 1e-5)


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_what_nobody_can_see_in_one_contribution_shows_in_sums(
    tmp_path: Path, monkeypatch: Patch, unmask: str
) -> None:
    """It was opened, so the run ends: members sign no second set of updates to one model."""
    grid, deal, spoilt = Puppets(tmp_path, NODES), survivors.masking.deal, list[int]()

    def other_seed(epoch: Any, slot: Any, seed: Any) -> Any:
        """Rank 0 deals shares of another seed than the one that masks its update."""
        spoilt.extend([slot.round] * (epoch.rank == 0))
        return deal(epoch, slot, np.roll(seed, 1) if epoch.rank == 0 else seed)

    monkeypatch.setattr(survivors.masking, "deal", other_seed)
    keep = {"state_dir": tmp_path / "server"}
    with pytest.raises(AlteredError, match="sign no other one from this model"):
        run(grid, 16, unmask, **keep)
    again = Puppets(tmp_path, NODES, run_id=8)
    with pytest.raises(AlteredError, match="sign no other one from this model"):
        run(again, 16, unmask, {"resume": True}, **keep)
    assert spoilt
    assert max(map(grid.stages("round").count, range(100, 100 + NODES))) == 1
    assert not any(map(again.trainings, range(NODES)))


@pytest.mark.parametrize("rounds", [1, 2, 12])
@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_round_after_round_comes_to_nothing(tmp_path: Path, unmask: str, rounds: int) -> None:
    """Each set is given up before anybody has answered, and nobody is blamed for going away.

    Also where there are no more of them than retries: the first model is nobody's result.
    """
    grid = Puppets(tmp_path, NODES)
    for round_ in range(1, 5):
        grid.drop(round_, "consist", "lost", range(3))
    with pytest.raises(QuorumError, match=f"{min(rounds, 3)} consecutive rounds are void"):
        run(grid, rounds, unmask)
    assert not any(grid.survivors)


@pytest.mark.parametrize("still", [1, 2])
@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_a_round_that_changes_nothing_is_not_the_silent_end_of_training(
    tmp_path: Path, unmask: str, still: int, log: Log
) -> None:
    """As with a learning rate of 0: members open one sum of a model that the server hands out."""
    grid = Puppets(tmp_path, NODES)
    app, moves = cast(Node, grid.app), cast(Node, grid.app).trained

    def trained(arrays: Any, partition: int) -> Any:
        rests = app.configs[-1]["server-round"] == still
        return dict(arrays) if rests else moves(arrays, partition)

    app.trained = trained
    if unmask == "server" and still == 1:
        with pytest.raises(QuorumError, match="round 2 begins with the model of an earlier round"):
            run(grid, 4, unmask)
        return
    run(grid, 4, unmask)
    seen = [grid.trainings(node) for node in range(NODES)]
    assert set(seen) == {2 if unmask == "server" else 4}
    left_out = "round 3 begins with the model of an earlier round" in log.text
    assert left_out == (unmask == "server")


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_a_set_that_too_few_answer_for_waits_for_them(tmp_path: Path, unmask: str) -> None:
    """The run ends and says who is silent; a resumed one opens that set first."""
    grid, keep = Puppets(tmp_path, NODES), {"state_dir": tmp_path / "server"}
    grid.drop(2, "unmask", "dead", range(3))
    with pytest.raises(
        QuorumError, match=r"3 survivors released .* 0 members gave it up"
    ) as caught:
        run(grid, 3, unmask, **keep)
    assert all(str(node) in str(caught.value) for node in (100, 101, 102))
    again = Puppets(tmp_path, NODES, run_id=8)
    strategy, result = run(again, 3, unmask, {"resume": True}, **keep)
    assert sorted(strategy._fed.ledger.chain) == [0, 1, 2, 3]
    arrays = numpy_of(result) if unmask == "server" else again.model(1).arrays()
    assert_like(arrays, reference(3), 1e-5)
    assert [stage for _, stage, _ in again.sent].index("unmask") < len(again.stages("unmask"))
    assert not again.stages("void")


def test_a_set_whose_members_come_back_with_new_keys_is_given_up(tmp_path: Path) -> None:
    """Nobody can answer for it any more, and those who had not answered say so."""
    grid, keep = Puppets(tmp_path, NODES), {"state_dir": tmp_path / "server"}
    grid.drop(2, "unmask", "dead", range(NODES))
    grid.fate = lambda node, stage, round_: "dead" if stage == "void" else None
    with pytest.raises(QuorumError, match="0 survivors released"):
        run(grid, 3, **keep)
    for index in range(NODES):  # their machines start anew
        Book(Store(grid.homes[index]), f"runs/7/{JOURNAL}").close()
    again = Puppets(tmp_path, NODES, run_id=8)
    strategy, _ = run(again, 3, start={"resume": True}, **keep)
    assert sorted(strategy._fed.ledger.chain) == [0, 1, 3]
    assert again.epochs(0) == 2


def test_a_deployed_node_lets_the_server_read_only_if_it_says_so(tmp_path: Path) -> None:
    for unmask in ("server", "clients"):
        grid = Puppets(tmp_path / unmask, NODES)
        pin(grid, range(NODES), NODES, collusion=1)
        for context in grid.contexts.values():
            del context.node_config["flhe-server-reads"]
        if unmask == "clients":  # the server is shown no sum, so there is nothing to allow
            run(grid, 1, unmask)
            continue
        with pytest.raises(QuorumError, match="its policy refuses"):
            run(grid, 1)
        assert grid.stages("round") == []


def test_a_set_is_given_up_in_an_epoch_smaller_than_the_roster(tmp_path: Path) -> None:
    """Eight sites are listed and six take part (c = 1, t = 5); two are silent when a set is signed."""
    grid = Puppets(tmp_path, 6)
    pin(grid, range(6), 8, collusion=1)
    grid.drop(2, "consist", "dead", range(2))
    strategy, _ = run(grid, 3, unmask="server", state_dir=tmp_path / "server")
    assert sorted(strategy._fed.ledger.chain) == [0, 1, 3]

"""Machines that start anew, and nodes of another version: named, and the federation goes on."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from flhe.errors import QuorumError
from flhe.mods import records
from flhe.strategies import EsaflFedAvg, FlasheFedAvg, SashFedAvg
from flhe.strategies.federation import LOST
from tests.mods.harness import SLUGS
from tests.strategies.puppets import Log, Puppets, play, restaged, same
from tests.strategies.reference import Reference, close, tolerance

pytestmark = pytest.mark.usefixtures("quick")

NODES = 4


@pytest.mark.parametrize(
    ("who", "durable", "agreements", "senders"),
    [
        ([1], False, 2, NODES - 1),  # its keys are found out about when it is asked for an update
        (range(NODES), False, 2, NODES),
        (range(NODES), True, 1, NODES),
    ],
    ids=["one", "all", "all, durable"],
)
def test_machines_that_start_anew_agree_anew(
    tmp_path: Path, who: Any, durable: bool, agreements: int, senders: int
) -> None:
    """Their disks may be those of yesterday: no mask of the keys on them is used again."""
    grid = Puppets(tmp_path, NODES, config=lambda i: memory(tmp_path, i, durable=durable))
    grid.before[3] = lambda: start_anew(tmp_path, *who)
    play(FlasheFedAvg, grid, 4)
    assert grid.stages("advertise") == agreements * [100 + i for i in range(NODES)]
    assert grid.survivors == [NODES, NODES, senders, NODES]
    assert same(grid, range(NODES)).round == 4
    assert grid.epochs(1) == agreements


def memory(path: Path, node: int, *, durable: bool = False) -> dict[str, Any]:
    """The node's own machine: its memory is a directory."""
    place = path / f"memory-{node}"
    place.mkdir(0o700, exist_ok=True)
    return {"flhe-durable": durable, "flhe-witness": str(place)}


def start_anew(path: Path, *nodes: int) -> None:
    """Machines start anew, all of them unless some are named: what was in memory is gone."""
    for node in nodes or range(NODES):
        for left in (path / f"memory-{node}").iterdir():
            left.unlink()


@pytest.mark.parametrize("make", [FlasheFedAvg, partial(EsaflFedAvg, keys="joint")])
def test_a_sum_whose_key_is_gone_everywhere_is_void(tmp_path: Path, caplog: Log, make: Any) -> None:
    """Power fails everywhere between a sum and its opening: that round is lost, and no more."""
    grid = Puppets(tmp_path, NODES, config=partial(memory, tmp_path))
    grid.before[3] = lambda: start_anew(tmp_path)
    play(make, grid, 4, fraction_evaluate=0.0)
    assert "too few have opened the sum of round 2, and its key is gone: it is void" in caplog.text
    assert same(grid, range(NODES)).round == 4


@pytest.mark.parametrize("make", [partial(SashFedAvg, unmask="clients"), EsaflFedAvg])
def test_a_sum_whose_senders_released_its_keys_is_read(tmp_path: Path, make: Any) -> None:
    """Power fails everywhere before it is: its members sign no other set, so it opens where it can."""
    grid = Puppets(tmp_path, NODES, config=partial(memory, tmp_path))
    grid.before[3] = lambda: start_anew(tmp_path)
    play(make, grid, 4, fraction_evaluate=0.0)
    assert grid.survivors == [NODES] * 4
    model = same(grid, range(NODES))
    assert model.round == 4
    close(model, Reference.of([set(range(NODES))] * 4), 4 * tolerance(list(range(NODES)), 1))


@pytest.mark.parametrize(("make", "how"), [(FlasheFedAvg, {}), (SashFedAvg, {"unmask": "clients"})])
def test_one_message_about_a_round_ahead_costs_rounds_and_no_more(
    tmp_path: Path, caplog: Log, make: Any, how: dict[str, Any]
) -> None:
    """A server that was dishonest once: the rounds that it used up are passed over."""
    grid, hit = Puppets(tmp_path, NODES), set[int]()

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        if stage != "round" or content[records.STAGE]["round"] != 2 or node in hit:
            return content
        hit.add(node)
        return restaged(content, round=4, attempt=2**32 - 2)

    grid.rewrite = rewrite
    play(make, grid, 7, **how)
    assert len(hit) == NODES
    assert same(grid, range(NODES)).round == 7


def test_power_fails_at_the_server_too(tmp_path: Path) -> None:
    """Between a sum and its opening, everywhere: the run that resumes takes that round back."""
    grid = Puppets(tmp_path, NODES, config=partial(memory, tmp_path))

    def power_cut() -> None:
        start_anew(tmp_path)
        raise ConnectionError

    how: dict[str, Any] = {"fraction_evaluate": 0.0, "state_dir": tmp_path / "state"}
    grid.before[3] = power_cut
    with pytest.raises(ConnectionError):
        play(FlasheFedAvg, grid, 4, **how)
    again = Puppets(tmp_path, NODES, config=partial(memory, tmp_path))
    play(FlasheFedAvg, again, 4, start={"resume": True}, **how)
    assert same(again, range(NODES)).round == 4


def test_a_round_gets_one_attempt_more_and_not_another(tmp_path: Path) -> None:
    """Most nodes have answered its attempts before, and then fail for ever."""
    grid = Puppets(tmp_path, NODES)
    asked = Counter[int]()

    def fails(node: int, reply: Message) -> Message:
        asked[node] += 1
        request = Message(RecordDict(), reply.metadata.src_node_id, "train")
        code = 1022 if asked[node] <= 2 else 1001
        return Message(Error(code=code, reason="test"), reply_to=request)

    grid.lies(grid.contexts, "round", fails)
    with pytest.raises(QuorumError):
        play(FlasheFedAvg, grid, 1, retries=1)
    assert max(asked.values()) <= 3


NOTED = {
    1011: "lost", 1012: "lost", 1013: "keyless", 1014: "lost", 1019: "lost", 1020: "keyless",
    1021: "left", 1023: "lost", 1024: "lost",
}  # fmt: skip
"""Refusals, and what the server takes the node for; all others leave it where it was."""


def test_a_refusal_says_where_a_node_stands(tmp_path: Path) -> None:
    strategy, _ = play(FlasheFedAvg, Puppets(tmp_path, 3), 2)
    fed = strategy._fed
    notes = (fed.membership.keyless, fed.membership.left, fed.refusers, fed.attempt.spent)
    for code in SLUGS:
        fed.at[101] = 0  # so the last sums are those that it was sent
        for known in (fed.confirmed, *notes):
            known.discard(101)
        fed.round.claimed.clear()
        reply = Message(RecordDict(), 101, "train")
        reply._content, reply._error = None, Error(code=code, reason="")
        sent = fed.ledger.base in (fed.missing_rounds(101) or ())
        fed.refused(101, reply)
        found = {"lost": fed.at[101] == LOST, "keyless": 101 in notes[0], "left": 101 in notes[1]}
        noted = [name for name, there in found.items() if there]
        assert noted == [name for name in found if name == NOTED.get(code)], code
        assert (101 in fed.refusers) == (sent and code in (1011, 1012, 1014, 1023, 1024))
        assert (101 in fed.attempt.spent) == (not sent and code == 1012)

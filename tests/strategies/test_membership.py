"""Members drop, come back, join and leave; all of them end with one model, that of plain FedAvg."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import Error, Message, RecordDict

from flhe.errors import QuorumError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import EsaflFedAvg, FlasheFedAvg, HEStrategy, SashFedAvg
from flhe.strategies.federation import LOST
from flhe.strategies.ledger import Ledger
from flhe.strategies.membership import Membership
from flhe.training.optimizer import Optimizer
from tests.mods.harness import SLUGS
from tests.strategies.puppets import (
    Log,
    Node,
    Puppets,
    federated,
    initial,
    play,
    refused,
    restaged,
    same,
    told,
)
from tests.strategies.reference import Reference, close, start_arrays, tolerance

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, **how: Any) -> HEStrategy:
    return play(FlasheFedAvg, grid, rounds, **how)[0]


def test_the_whole_story(tmp_path: Path, caplog: Log) -> None:
    """2 of 5 drop in round 3, one is back in 5, a sixth joins in 6, one leaves in 7."""
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, 6)
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
    assert grid.survivors == [len(p) for p in present.values()]
    model = same(grid, [0, 1, 2, 3, 5])
    assert model.round == 10
    bound = sum(tolerance(partitions, 1) for partitions in present.values())
    close(model, Reference.of(present.values()), bound)
    assert not list((grid.homes[4] / "epochs").iterdir()), "who left has no keys"
    assert [grid.epochs(n) for n in range(6)] == [4, 4, 2, 4, 2, 3]
    assert [grid.keys(n) for n in range(6)] == [1, 1, 1, 1, 0, 1]
    for said in ("1 join", "1 left", "node 105 has caught up", "node 102 has caught up"):
        assert said in caplog.text


def test_a_member_that_lost_its_directory(tmp_path: Path) -> None:
    """It is a new site then, with a new identity; the group takes it in."""
    grid = Puppets(tmp_path, 4)
    grid.before[3] = lambda: shutil.rmtree(grid.homes[2])
    run(grid, 5)
    assert same(grid, range(4)).round == 5
    assert grid.survivors[2:4] == [3, 4]  # the others do not wait for it


def test_two_of_three_go_on(tmp_path: Path) -> None:
    """The third is not waited for."""
    grid = Puppets(tmp_path, 3)
    grid.away = lambda round_: {102} if round_ == 2 else set()
    run(grid, 3, min_available_nodes=2, connect_timeout=3.0)
    assert (grid.survivors, grid.epochs(0)) == ([3, 2, 3], 1)


def test_a_round_that_too_few_answer_is_asked_for_again(tmp_path: Path, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda _, stage, round_: (
        "dead" if (stage, round_) == ("round", 2) and len(grid.stages("round")) <= 8 else None
    )
    run(grid, 3)
    assert "round 2: 0 updates, 3 needed" in caplog.text
    assert "asking again (attempt 2)" in caplog.text
    assert grid.survivors == [4, 4, 4]
    assert same(grid, range(4)).round == 3


def test_a_resumed_run_asks_under_the_next_attempt(tmp_path: Path) -> None:
    """Not under the first one again: nodes would send what they sent, and the others nothing."""
    grid, how = Puppets(tmp_path, 4), {"state_dir": tmp_path / "server", "retries": 1}
    grid.fate = lambda _, stage, round_: "silent" if (stage, round_) == ("round", 2) else None
    assert refused(FlasheFedAvg, grid, **how).startswith("round 2: 0 updates")
    again = Puppets(tmp_path, 4, run_id=8)
    play(FlasheFedAvg, again, 3, start={"resume": True}, **how)
    asked = [content[records.STAGE] for _, stage, content in again.sent if stage == "round"]
    assert [(said["round"], said["attempt"]) for said in asked] == [(2, 2)] * 4 + [(3, 0)] * 4


def test_a_joiner_that_breaks_the_agreement_off(tmp_path: Path) -> None:
    """The epoch goes on without it, and it is asked again in a while, not in every round."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda r: {104} if r == 1 else set()
    grid.fate = lambda node, stage, r: "dead" if node == 104 and stage == "share" else None
    run(grid, 4)
    assert grid.survivors == [4] * 4
    assert grid.stages("share").count(104) == 1
    assert same(grid, range(4)).round == 4


def test_who_comes_late_fits_the_same_thresholds(tmp_path: Path) -> None:
    """Memory of codecs and optimizers is in the checkpoint: joiners clip, select and step alike."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda r: {103, 104} if r < 3 else set()
    how: dict[str, Any] = {"optimizer": Optimizer("fedadam"), "masking": "adaptive"}
    run(grid, 4, top_k=0.3, small=0, warmup=1, clip="history", **how)
    model = same(grid, range(5))
    assert set(model.moments) == {"m", "v"}
    assert model.moments["m"].any()
    assert grid.survivors[-1] == 5
    assert model.memory["topk.rounds"].tolist() == [4.0]
    assert model.memory["clip.mean-square"].size == 5


# --- initial_arrays=None: a member makes the first model, and the server never sees it ---


def secret(path: Path, nodes: int) -> Puppets:
    return Puppets(path, nodes, Node(HEMod(initial=lambda context: initial())))


NOTHING = {"initial_arrays": None}


def test_all_members_start_from_the_secret_model(tmp_path: Path) -> None:
    grid, wire = secret(tmp_path, 4), list[bytes]()
    grid.tap = lambda _direction, _node, content: wire.append(bytes(content))
    _, result = play(FlasheFedAvg, grid, 3, start=NOTHING)
    close(same(grid, range(4)), Reference.of([range(4)] * 3), tolerance(range(4), 3))
    path = tmp_path / "model.flhe"
    path.write_bytes(b"".join(records.to_pieces(result.arrays)))
    assert open_checkpoint(path, tmp_path / "node-0").round == 3
    assert not any(start_arrays()["w"].tobytes() in content for content in wire)
    assert not any("arrays" in content for _, _, content in grid.sent)


def test_the_next_member_makes_it_or_nobody_can(tmp_path: Path) -> None:
    grid = secret(tmp_path, 4)
    grid.fate = lambda node, stage, _: (
        "silent" if stage == "initial" and node == grid.stages("initial")[0] else None
    )
    play(FlasheFedAvg, grid, 2, start=NOTHING)
    assert same(grid, range(4)).round == 2
    with pytest.raises(QuorumError, match="no member made an initial model"):
        play(FlasheFedAvg, Puppets(tmp_path / "none", 3), 1, start=NOTHING)


# --- checkpoints, and who vouches for them ---


@pytest.mark.parametrize(
    ("there", "dues"),
    [
        ([[1, 2], [1, 2], [1, 2], [1, 2]], ["", "", "1 left", "1 left"]),
        ([[1, 2], [1, 2, 3], [1, 2], [1, 2]], ["", "", "", ""]),
    ],
    ids=["who is away for long has left", "who comes back in time has not"],
)
def test_patience(there: list[list[int]], dues: list[str]) -> None:
    m = Membership(patience=2, rekey_every=0)
    for round_, (connected, due) in enumerate(zip(there, dues, strict=True), 1):
        m.see(round_, [1, 2, 3], connected)
        assert m.due(round_, 1, [1, 2, 3], connected) == due


def ledger_of(grid: Puppets, rounds: int) -> Ledger:
    return federated(FlasheFedAvg, grid, rounds).ledger


def lose_model(grid: Puppets, round_: int) -> int:
    """The member of the highest rank finds no model before a round; returns its partition."""
    last = len(grid.contexts) - 1
    grid.app.examples = lambda p: 10
    grid.before[round_] = lambda: (grid.run_dir(last) / "model").write_bytes(b"?")
    return last


@pytest.mark.parametrize(("size", "need"), [(3, 1), (7, 3)])
def test_more_vouch_for_a_checkpoint_than_may_collude(
    tmp_path: Path, size: int, need: int, caplog: Log
) -> None:
    """One more than the sealer is asked in any case."""
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, size)
    late = lose_model(grid, 2)
    ledger = ledger_of(grid, 3)
    told = [line for line in caplog.messages if "has caught up by a checkpoint" in line]
    assert told == [f"node {100 + late} has caught up by a checkpoint"]
    assert len(set(ledger.vouchers)) == max(need, 2)
    assert same(grid, range(size)).round == 3


def test_nobody_is_caught_up_by_too_few(tmp_path: Path, caplog: Log) -> None:
    """The run goes on with those who have the model, and the last model is theirs."""
    grid, asked = Puppets(tmp_path, 7), list[int]()
    late = lose_model(grid, 2)

    def shy(node: int, reply: Message) -> None:
        asked.append(node)
        if node != asked[0]:
            told(reply).pop("voucher", None)

    grid.lies(range(100, 107), "verify", shy)
    ledger = ledger_of(grid, 2)
    assert f"nodes [{100 + late}] remain behind: no member sealed a checkpoint" in caplog.text
    assert "too few find their model in its checkpoint" in caplog.text
    assert grid.survivors == [7, 6]
    assert ledger.box is None
    assert same(grid, [i for i in range(7) if i != late]).round == 2


def test_a_false_voucher_does_not_count(tmp_path: Path, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    late = lose_model(grid, 3)

    def forge(_: int, reply: Message) -> None:
        voucher = told(reply)["voucher"]
        told(reply)["voucher"] = voucher[:-1] + bytes([voucher[-1] ^ 1])  # type: ignore[index, operator]

    lied = grid.lies(lambda node: node == 100 + grid.ranked()[1], "verify", forge)
    ledger = ledger_of(grid, 4)
    assert lied
    assert "the signature does not verify" in caplog.text
    assert len(ledger.vouchers) == 2
    assert same(grid, range(4)).round == 4
    assert grid.model(late).round == 4


def test_who_opened_a_sum_that_is_void_is_named_and_asked(tmp_path: Path, caplog: Log) -> None:
    """The others go on; it comes back once its administrator takes their result."""
    grid, at = Puppets(tmp_path, 5), f"{records.SUM}.0"

    def damaged(node: int, _stage: str, content: RecordDict) -> RecordDict:
        record = content[records.STAGE]
        if at not in content or record["round"] != 2 or node == 100:
            return content
        (header,) = records.bytes_list(record, "sums")
        total = records.to_sealed(header, content.array_records[at])
        total = replace(total, data=total.data ^ 0x5A)
        return RecordDict({**content, at: records.from_sealed(total)})

    def move_away() -> None:
        assert grid.model(0).round == 2
        (grid.run_dir(0) / "model").rename(grid.run_dir(0) / "model-before")

    grid.rewrite = damaged
    grid.before[5] = move_away
    ledger_of(grid, 6)
    assert "no node could open the sum of round 2: the round is void" in caplog.text
    assert "node 100: flhe/two-stories" in caplog.text
    assert "round 2: the result here is" in grid.log(0)
    # Until all have been in sums that opened, some are left out: it might have been one of them.
    assert grid.survivors[:2] == [5, 5]
    assert set(grid.survivors[2:]) <= {3, 4, 5}
    assert [link.round for link in same(grid, range(5)).chain] == [1, 3, 4, 5, 6]


# --- machines that start anew, rounds ahead, and what refusals say ---

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
        return refusal(reply, 1022 if asked[node] <= 2 else 1001)

    grid.lies(grid.contexts, "round", fails)
    with pytest.raises(QuorumError):
        play(FlasheFedAvg, grid, 1, retries=1)
    assert max(asked.values()) <= 3


def test_a_run_whose_rounds_are_all_passed_over_trains_no_model(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    grid.lies(grid.contexts, "round", lambda _node, reply: refusal(reply, 1012))
    with pytest.raises(QuorumError, match="2 consecutive rounds are void"):
        play(FlasheFedAvg, grid, 2)


def refusal(reply: Message, code: int) -> Message:
    request = Message(RecordDict(), reply.metadata.src_node_id, "train")
    return Message(Error(code=code, reason="test"), reply_to=request)


NOTED = {
    1011: "lost", 1012: "lost", 1013: "keyless", 1014: "lost", 1019: "lost", 1020: "keyless",
    1021: "left", 1023: "lost", 1024: "lost",
}  # fmt: skip
"""Refusals, and what the server takes the node for; all others leave it where it was."""


def test_a_refusal_says_where_a_node_stands(tmp_path: Path) -> None:
    fed = federated(FlasheFedAvg, Puppets(tmp_path, 3), 2)
    fed.grid.node_of = Mock(return_value=101)  # type: ignore[method-assign]
    notes = (fed.membership.keyless, fed.membership.left, fed.refusers, fed.attempt.spent)
    for code in SLUGS:
        fed.at[101] = 0  # so the last sums are those that it was sent
        for known in (fed.confirmed, *notes):
            known.discard(101)
        fed.round.claimed.clear()
        reply = Message(RecordDict(), 101, "train")
        reply._content, reply._error = None, Error(code=code, reason="")
        fed.grid.send_and_receive = Mock(return_value=[reply])  # type: ignore[method-assign]
        assert fed.gather("of no model", {101: RecordDict()}, 1.0, {}, lambda *_: None) == {}
        assert fed.at[101] == 0
        fed.round.claimed.clear()
        sent = fed.ledger.base in (fed.missing_rounds(101) or ())
        fed.refused(101, reply)
        found = {"lost": fed.at[101] == LOST, "keyless": 101 in notes[0], "left": 101 in notes[1]}
        noted = [name for name, there in found.items() if there]
        assert noted == [name for name in found if name == NOTED.get(code)], code
        assert (101 in fed.refusers) == (sent and code in (1011, 1012, 1014, 1023, 1024))
        assert (101 in fed.attempt.spent) == (not sent and code == 1012)

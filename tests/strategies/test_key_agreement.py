"""Key agreement as the server drives it: whoever fails is named and left out, or nobody agrees."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flhe.errors import QuorumError
from flhe.keys.agreement.epoch import CONTRIBUTORS
from flhe.keys.agreement.messages import Envelope
from flhe.keys.roster.roster import Roster
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import ATTEMPTS, Agreed, agree
from flhe.strategies.trouble import reasons
from flhe.training.terms import Terms
from tests.strategies.puppets import Fate, Log, Node, Puppets, new_node, pin, put_identity, told

pytestmark = pytest.mark.usefixtures("quick")

TERMS = Terms()
RELAYS = ("advertise", "share", "confirm")


def agreed(grid: Puppets, run_id: int = 7) -> Agreed:
    stream = StreamGrid(grid)
    try:
        return agree(stream, grid.get_node_ids(), TERMS, run_id=run_id, timeout=60)
    finally:
        grid.close()


def members(grid: Puppets) -> list[int]:
    """Partitions of those who agree."""
    return sorted(node - 100 for node in agreed(grid).members)


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_all_of_them_agree(tmp_path: Path, size: int) -> None:
    grid = Puppets(tmp_path, size)
    done = agreed(grid)
    assert done.number == 0
    assert done.members == {100 + i: grid.identity(i).public for i in range(size)}
    assert len(done.confirms) == size
    assert len(done.epoch) == 16
    roster = Roster.first_use(done.members.values())
    assert done.roster_hash == roster.hash
    ranks = [done.rank(node) for node in done.members]
    assert [roster.rank(key) for key in done.members.values()] == ranks
    assert sorted(ranks) == list(range(size))
    # Each relay is one message a node.
    assert [stage for _, stage, _ in grid.sent] == [s for s in RELAYS for _ in range(size)]
    assert all(set(content) == {records.STAGE} for _, _, content in grid.sent)


def test_of_a_larger_group_the_first_members_send_shares(tmp_path: Path) -> None:
    size, sent = CONTRIBUTORS + 1, dict[int, int]()
    grid = Puppets(tmp_path, size)

    def seen(node: int, reply: Message) -> None:
        sent[node] = len(records.bytes_list(told(reply), "envelopes"))

    grid.lies(grid.contexts, "share", seen)
    done = agreed(grid)
    ranks = {done.rank(node): count for node, count in sent.items()}
    assert [ranks[rank] for rank in range(size)] == [size - 1] * CONTRIBUTORS + [0]
    assert len(done.confirms) == size


def test_one_that_sends_shares_and_should_not_is_left_out(tmp_path: Path, caplog: Log) -> None:
    size, hellos = CONTRIBUTORS + 1, dict[int, Envelope]()
    grid, liars = Puppets(tmp_path, size), list[int]()

    def advertise(node: int, reply: Message) -> None:
        hellos[node] = Envelope.from_bytes(told(reply)["envelope"], 1024)

    def share(node: int, reply: Message) -> None:
        if not liars and not records.bytes_list(told(reply), "envelopes"):
            liars.append(node)
            me = grid.identity(node - 100)
            head = dataclasses.replace(hellos[node].header, stage="share")
            peers = [hello.header.sender for peer, hello in hellos.items() if peer != node]
            heads = [dataclasses.replace(head, receiver=peer) for peer in peers]
            told(reply)["envelopes"] = [Envelope.seal(me, each, b"").to_bytes() for each in heads]

    grid.lies(lambda _: not liars, "advertise", advertise)
    grid.lies(grid.contexts, "share", share)
    done = agreed(grid)
    assert len(liars) == 1
    assert set(done.members) == set(range(100, 100 + size)) - set(liars)
    assert "it did not send one SHARE to each other member" in caplog.text


@pytest.mark.parametrize("liars", [0, 1])
@pytest.mark.parametrize("size", [3, 5])
def test_what_most_tell_of_collusion(tmp_path: Path, size: int, liars: int) -> None:
    grid = Puppets(tmp_path, size)
    grid.lies(range(100, 100 + liars), "confirm", lambda _, reply: told(reply).update(colluders=0))
    assert agreed(grid).colluders == Roster.default_collusion(size)


def test_two_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="only 2 nodes advertised a key, 3 or more are needed"):
        agreed(Puppets(tmp_path, 2))


# --- nodes that fail on the way ---


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", RELAYS)
@pytest.mark.parametrize("size", [4, 6])
def test_one_that_fails_is_left_out(
    tmp_path: Path, size: int, stage: str, fate: Fate, caplog: Log
) -> None:
    grid = Puppets(tmp_path, size)
    grid.fate = lambda node, at, round_: fate if (node, at) == (101, stage) else None
    done = agreed(grid)
    assert set(done.members) == {100, *range(102, 100 + size)}
    assert done.number == (0 if stage == "advertise" else 1)
    why = "the node is unavailable" if fate == "dead" else "no answer within 60 s"
    assert f"node 101: {why}" in caplog.text or f"node 101 is left out: {why}" in caplog.text
    assert 101 not in grid.stages("confirm")[-(size - 1) :]


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", RELAYS)
def test_one_of_three_that_fails_is_too_many(tmp_path: Path, stage: str, fate: Fate) -> None:
    grid = Puppets(tmp_path, 3)
    grid.fate = lambda node, at, round_: fate if (node, at) == (102, stage) else None
    why = "only 2 nodes advertised" if stage == "advertise" else "1 of 3 nodes did not answer"
    with pytest.raises(QuorumError, match=f"no key was agreed on: {why}.*node 102: "):
        agreed(grid)


def like(reply: Message) -> Message:
    """A message that has the same answer's metadata turned around."""
    request = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return request


def policy(_: int, reply: Message) -> Message:
    return Message(Error(code=1010, reason="flhe/policy"), reply_to=like(reply))


def says(answer: dict[str, Any]) -> Any:
    """A lie: nothing but this."""
    record = ConfigRecord({"v": records.PROTOCOL, **answer})
    return lambda _, reply: reply.content.update({records.REPLY: record})


WRONG: dict[str, tuple[Any, str]] = {
    "refused": (policy, "flhe/policy: its policy refuses this run"),
    "nothing": (says({}), ""),
    "numbers": (says({"envelope": 3, "envelopes": 3}), ""),
    "garbage": (says({"envelope": b"x", "envelopes": [b"x"] * 4}), ""),
}


@pytest.mark.parametrize("stage", RELAYS)
@pytest.mark.parametrize("name", WRONG)
def test_one_that_refuses_or_answers_nonsense_is_left_out(
    tmp_path: Path, stage: str, name: str, caplog: Log
) -> None:
    """It is the one to leave out, not those who saw its messages."""
    grid, (lie, why) = Puppets(tmp_path, 5), WRONG[name]
    grid.lies([104], stage, lie)
    assert members(grid) == [0, 1, 2, 3]
    assert why in caplog.text


def test_a_different_one_fails_each_time(tmp_path: Path) -> None:
    """Three attempts are made, no more."""
    grid = Puppets(tmp_path, 8)
    fails = {8: (100, "share"), 15: (101, "confirm"), 21: (102, "share")}
    grid.fate = lambda node, stage, _: (
        "dead" if fails.get(len(grid.stages("advertise"))) == (node, stage) else None
    )
    with pytest.raises(QuorumError, match="node 102: the node is unavailable"):
        agreed(grid)
    assert len(grid.stages("advertise")) == 8 + 7 + 6
    assert ATTEMPTS == 3


def test_nobody_answers(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, stage, round_: "silent"
    with pytest.raises(QuorumError, match="4 nodes, first 100: no answer within 60 s"):
        agreed(grid)
    assert len(grid.stages("advertise")) == 4  # not asked again: nobody is left


# --- nodes that do not belong ---


def test_a_node_without_the_mod_is_named(tmp_path: Path, caplog: Log) -> None:
    node = new_node()

    def mixed(message: Message, context: Context) -> Message:
        if context.node_id != 100:
            return node(message, context)
        return Message(RecordDict({"metrics": ConfigRecord({"a": 1})}), reply_to=message)

    assert members(Puppets(tmp_path, 4, mixed)) == [1, 2, 3]
    assert "node 100 is left out: its app has no HEMod: put HEMod() first" in caplog.text


def test_an_app_without_the_mod_is_told_so(tmp_path: Path) -> None:
    """What most apps do with a message that holds no arrays: they raise."""
    with pytest.raises(QuorumError, match="HEMod"):
        agreed(Puppets(tmp_path, 3, Node()))


def copied_seed(path: Path) -> Puppets:
    for home in (path / "node-0", path / "node-1"):
        put_identity(home, bytes(32))
    return Puppets(path, 4)


def copied_directory(path: Path) -> Puppets:
    agreed(Puppets(path, 3))
    shutil.copytree(path / "node-0", path / "node-3")
    return Puppets(path, 4)


def one_directory(path: Path) -> Puppets:
    return Puppets(path, 4, config=lambda i: {"flhe-home": str(path / f"{i // 2}")})


@pytest.mark.parametrize("make", [copied_seed, copied_directory, one_directory])
def test_two_nodes_that_share_an_identity(tmp_path: Path, make: Any) -> None:
    grid = make(tmp_path)
    with pytest.raises(QuorumError, match="two nodes share one identity: give each a state dir"):
        agreed(grid)
    assert not grid.stages("share")


def unnamed(content: RecordDict) -> RecordDict:
    """A stage that does not say which federation it belongs to: then it is the run's own."""
    fields = dict(content[records.STAGE])
    del fields["federation"]
    return RecordDict({records.STAGE: ConfigRecord(fields)})


def test_a_node_of_another_run(tmp_path: Path, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    grid.contexts[101].run_id = 8
    grid.rewrite = lambda node, stage, content: unnamed(content) if node == 101 else content
    assert members(grid) == [0, 2, 3]
    assert "node 101 is left out: advertise message: run_id is 8, expected 7" in caplog.text


def test_all_nodes_of_another_run(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    grid.rewrite = lambda node, stage, content: unnamed(content)
    with pytest.raises(QuorumError, match="run_id is 7, expected 8"):
        agreed(grid, run_id=8)


def test_a_federation_that_another_run_began(tmp_path: Path) -> None:
    """Its id is in every message, so that a run which resumes it speaks of the same one."""
    assert set(agreed(Puppets(tmp_path, 3), run_id=8).members) == {100, 101, 102}
    assert (tmp_path / "node-0" / "runs" / "8" / "agreement").exists()


def test_an_old_message_replayed(tmp_path: Path) -> None:
    """The last attempt's ADVERTISE, under the number of this one."""
    grid, kept = Puppets(tmp_path, 5), list[Any]()

    def replay(_: int, reply: Message) -> None:
        kept.append(reply.content[records.REPLY])
        reply.content[records.REPLY] = kept[0]

    grid.lies([104], "advertise", replay)
    grid.fate = lambda node, at, round_: "dead" if (node, at) == (100, "share") else None
    done = agreed(grid)
    assert (done.number, set(done.members)) == (1, {101, 102, 103})


# --- pinned rosters ---


def pinned(path: Path, size: int, listed: int, **bounds: Any) -> Puppets:
    grid = Puppets(path, size)
    pin(grid, range(size), listed, **bounds)
    return grid


def test_members_of_a_pinned_roster_agree(tmp_path: Path) -> None:
    grid = pinned(tmp_path, 4, 4, collusion=1)
    done = agreed(grid)
    assert set(done.members) == {100, 101, 102, 103}
    assert done.roster_hash.hex() == grid.contexts[100].node_config["flhe-roster-hash"]
    assert done.colluders == 1


def test_a_node_that_is_not_listed_is_left_out(tmp_path: Path, caplog: Log) -> None:
    assert members(pinned(tmp_path, 4, 3)) == [0, 1, 2]
    assert "node 103 is left out: flhe/protocol" in caplog.text


def test_fewer_than_the_roster_wants(tmp_path: Path) -> None:
    grid = pinned(tmp_path, 5, 5, collusion=1)
    grid.fate = lambda node, at, round_: "dead" if node in (103, 104) else None
    with pytest.raises(QuorumError, match="flhe/quorum: too few members"):
        agreed(grid)


def test_a_node_that_pins_another_roster_is_the_one_to_leave_out(tmp_path: Path) -> None:
    """A site that forgot to install the new roster must not stop those that agree."""
    grid = pinned(tmp_path, 5, 5)
    pin(grid, [4], 5, "other", collusion=1)
    assert members(grid) == [0, 1, 2, 3]


# --- words ---


def test_each_reason_is_said_once() -> None:
    said = reasons({3: "no", 1: "no", 2: "yes"})
    assert said == "2 nodes, first 1: no; node 2: yes"
    assert reasons({}) == "no node reported an error"
    assert reasons({i: f"reason {i}" for i in range(9)}).count(";") == 4

"""Key agreement as the server drives it: whoever fails is named and left out, or nobody agrees."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.errors import QuorumError
from flhe.keys.agreement.epoch import CONTRIBUTORS
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import ATTEMPTS, Agreed, agree
from flhe.strategies.trouble import reasons
from flhe.training.terms import Terms
from tests.rosters import write_signed
from tests.strategies.puppets import Fate, Node, Puppets, new_node, told

pytestmark = pytest.mark.usefixtures("quick")

TERMS = Terms()
RELAYS = ("advertise", "share", "confirm")


def agreed(grid: Puppets, run_id: int = 7) -> Agreed:
    stream = StreamGrid(grid)
    try:
        return agree(stream, grid.get_node_ids(), TERMS, run_id=run_id, timeout=60)
    finally:
        grid.close()


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_all_of_them_agree(tmp_path: Path, size: int) -> None:
    grid = Puppets(tmp_path, size)
    done = agreed(grid)
    assert done.number == 0
    assert done.members == {100 + i: grid.identity(i).public for i in range(size)}
    assert sorted(done.rank(node) for node in done.members) == list(range(size))
    assert len(done.confirms) == size
    assert len(done.epoch) == 16
    roster = Roster.first_use(done.members.values())
    assert done.roster_hash == roster.hash
    assert [roster.rank(key) for key in done.members.values()] == [
        done.rank(node) for node in done.members
    ]


def test_of_a_larger_group_the_first_members_send_shares(tmp_path: Path) -> None:
    size = CONTRIBUTORS + 1
    grid = Puppets(tmp_path, size)
    sent: dict[int, int] = {}

    def seen(node: int, at: str, reply: Message) -> Message:
        if at == "share":
            sent[node] = len(records.bytes_list(told(reply), "envelopes"))
        return reply

    grid.forge = seen
    done = agreed(grid)
    ranks = {done.rank(node): count for node, count in sent.items()}
    assert [ranks[rank] for rank in range(size)] == [size - 1] * CONTRIBUTORS + [0]
    assert len(done.confirms) == size


def test_one_that_sends_shares_and_should_not_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = CONTRIBUTORS + 1
    grid = Puppets(tmp_path, size)
    hellos: dict[int, Envelope] = {}
    liars = []

    def forge(node: int, at: str, reply: Message) -> Message:
        record = told(reply)
        if at == "advertise" and not liars:
            hellos[node] = Envelope.from_bytes(records.field(record, "envelope", bytes), 1024)
        if at == "share" and not liars and not records.bytes_list(record, "envelopes"):
            liars.append(node)
            me = grid.identity(node - 100)
            head = dataclasses.replace(hellos[node].header, stage="share")
            peers = [hello.header.sender for peer, hello in hellos.items() if peer != node]
            heads = [dataclasses.replace(head, receiver=peer) for peer in peers]
            record["envelopes"] = [Envelope.seal(me, each, b"").to_bytes() for each in heads]
        return reply

    grid.forge = forge
    done = agreed(grid)
    assert len(liars) == 1
    assert set(done.members) == set(range(100, 100 + size)) - set(liars)
    assert "it did not send one SHARE to each other member" in caplog.text


@pytest.mark.parametrize("liars", [0, 1])
@pytest.mark.parametrize("size", [3, 5])
def test_what_most_tell_of_collusion(tmp_path: Path, size: int, liars: int) -> None:
    grid = Puppets(tmp_path, size)

    def forge(node: int, at: str, reply: Message) -> Message:
        if node < 100 + liars and at == "confirm":
            told(reply)["colluders"] = 0
        return reply

    grid.forge = forge
    assert agreed(grid).colluders == Roster.default_collusion(size)


def test_two_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="only 2 nodes advertised a key, 3 or more are needed"):
        agreed(Puppets(tmp_path, 2))


def test_each_relay_is_one_message_a_node(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    agreed(grid)
    assert [stage for _, stage, _ in grid.sent] == [s for s in RELAYS for _ in range(4)]
    assert all(set(content) == {records.STAGE} for _, _, content in grid.sent)


# --- nodes that fail on the way ---


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", RELAYS)
@pytest.mark.parametrize("size", [4, 6])
def test_one_that_fails_is_left_out(
    tmp_path: Path, size: int, stage: str, fate: Fate, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Puppets(tmp_path, size)
    grid.fate = lambda node, at, round_: fate if (node, at) == (101, stage) else None
    done = agreed(grid)
    assert set(done.members) == {100, *range(102, 100 + size)}
    assert done.number == (0 if stage == "advertise" else 1)
    why = "the node is unavailable" if fate == "dead" else "no answer within 60 s"
    assert f"node 101: {why}" in caplog.text or f"node 101 is left out: {why}" in caplog.text
    tail = grid.stages("confirm")[-(size - 1) :]
    assert 101 not in tail


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", RELAYS)
def test_one_of_three_that_fails_is_too_many(tmp_path: Path, stage: str, fate: Fate) -> None:
    grid = Puppets(tmp_path, 3)
    grid.fate = lambda node, at, round_: fate if (node, at) == (102, stage) else None
    why = "only 2 nodes advertised" if stage == "advertise" else "1 of 3 nodes did not answer"
    with pytest.raises(QuorumError, match=f"no key was agreed on: {why}") as caught:
        agreed(grid)
    assert "node 102: " in str(caught.value)


@pytest.mark.parametrize("stage", RELAYS)
def test_one_that_refuses_is_left_out(
    tmp_path: Path, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Puppets(tmp_path, 4)

    def forge(node: int, at: str, reply: Message) -> Message:
        if (node, at) != (103, stage):
            return reply
        return Message(Error(code=1010, reason="flhe/policy"), reply_to=like(reply))

    grid.forge = forge
    assert set(agreed(grid).members) == {100, 101, 102}
    assert "flhe/policy: its policy refuses this run" in caplog.text


def like(reply: Message) -> Message:
    """A message that has the same answer's metadata turned around."""
    request = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return request


def test_a_different_one_fails_each_time(tmp_path: Path) -> None:
    """Three attempts are made, no more."""
    grid = Puppets(tmp_path, 8)
    fails = {100: "share", 101: "confirm", 102: "share"}

    def fate(node: int, stage: str, round_: int) -> Fate:
        at = len(grid.stages("advertise"))
        turn = {8: 100, 15: 101, 21: 102}.get(at)
        return "dead" if node == turn and stage == fails[node] else None

    grid.fate = fate
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


@pytest.mark.parametrize("stage", RELAYS)
@pytest.mark.parametrize(
    "answer",
    [{}, {"envelope": 3, "envelopes": 3}, {"envelope": b"x", "envelopes": [b"x"] * 4}],
    ids=["nothing", "numbers", "garbage"],
)
def test_one_that_answers_nonsense_is_left_out(
    tmp_path: Path, stage: str, answer: dict[str, Any]
) -> None:
    """It is the one to leave out, not those who saw its messages."""
    grid = Puppets(tmp_path, 5)

    def forge(node: int, at: str, reply: Message) -> Message:
        if (node, at) == (104, stage):
            reply.content[records.REPLY] = ConfigRecord({"v": 2, **answer})
        return reply

    grid.forge = forge
    assert set(agreed(grid).members) == {100, 101, 102, 103}


# --- nodes that do not belong ---


class Mixed(ClientApp):
    """Node 100 + i runs apps[i], the others the last one."""

    def __init__(self, *apps: Any) -> None:
        super().__init__()
        self.apps = apps

    def __call__(self, message: Message, context: Context) -> Message:
        index = int(context.node_config["partition-id"])
        reply = self.apps[min(index, len(self.apps) - 1)](message, context)
        assert isinstance(reply, Message)
        return reply


def answers_anything(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": ConfigRecord({"a": 1})}), reply_to=message)


def test_a_node_without_the_mod_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Puppets(tmp_path, 4, Mixed(answers_anything, new_node()))
    assert set(agreed(grid).members) == {101, 102, 103}
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


def put_identity(home: Path, seed: bytes) -> None:
    home.mkdir(mode=0o700)
    (home / "identity.key").touch(0o600)
    (home / "identity.key").write_bytes(seed)


def test_a_node_of_another_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Puppets(tmp_path, 4)
    grid.contexts[101].run_id = 8
    grid.rewrite = lambda node, stage, content: unnamed(content) if node == 101 else content
    assert set(agreed(grid).members) == {100, 102, 103}
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


def unnamed(content: RecordDict) -> RecordDict:
    """A stage that does not say which federation it belongs to: then it is the run's own."""
    record = ConfigRecord(dict(content[records.STAGE].items()))
    del record["federation"]
    return RecordDict({records.STAGE: record})


def test_an_old_message_replayed(tmp_path: Path) -> None:
    """The last attempt's ADVERTISE, under the number of this one."""
    grid = Puppets(tmp_path, 5)
    kept: list[RecordDict] = []

    def forge(node: int, at: str, reply: Message) -> Message:
        if (node, at) == (104, "advertise"):
            kept.append(reply.content)
            reply.content[records.REPLY] = kept[0][records.REPLY]
        return reply

    grid.forge = forge
    grid.fate = lambda node, at, round_: "dead" if (node, at) == (100, "share") else None
    done = agreed(grid)
    assert (done.number, set(done.members)) == (1, {101, 102, 103})


# --- pinned rosters ---


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Any]:
    """size, listed nodes, bounds -> a grid whose nodes pin one roster."""
    grids: list[Puppets] = []

    def make(size: int, listed: int, **bounds: Any) -> Puppets:
        seeds = [bytes([i + 1]) * 32 for i in range(size)]
        members = tuple(
            Member(f"site-{i}", Identity.from_seed(seeds[i]).public) for i in range(listed)
        )
        roster = Roster(
            members, bounds.get("collusion", 0), bounds.get("min_survivors", 2), ("flashe",)
        )
        pinned = write_signed(tmp_path / "roster", roster, map(Identity.from_seed, seeds))
        grid = Puppets(tmp_path, size, config=lambda i: pinned)
        for home, seed in zip(grid.homes, seeds, strict=True):
            put_identity(home, seed)
        grids.append(grid)
        return grid

    yield make
    for grid in grids:
        grid.close()


def test_members_of_a_pinned_roster_agree(site: Any) -> None:
    grid = site(4, 4, collusion=1)
    done = agreed(grid)
    assert set(done.members) == {100, 101, 102, 103}
    roster_file = grid.contexts[100].node_config["flhe-roster-hash"]
    assert done.roster_hash.hex() == roster_file
    assert done.colluders == 1


def test_a_node_that_is_not_listed_is_left_out(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert set(agreed(site(4, 3)).members) == {100, 101, 102}
    assert "node 103 is left out: flhe/protocol" in caplog.text


def test_fewer_than_the_roster_wants(site: Any) -> None:
    grid = site(5, 5, collusion=1)
    grid.fate = lambda node, at, round_: "dead" if node in (103, 104) else None
    with pytest.raises(QuorumError, match="flhe/quorum: too few members"):
        agreed(grid)


def test_a_node_that_pins_another_roster_is_the_one_to_leave_out(site: Any, tmp_path: Path) -> None:
    """A site that forgot to install the new roster must not stop those that agree."""
    grid = site(5, 5)
    old = SignedRoster.from_bytes((tmp_path / "roster").read_bytes()).roster
    other = Roster(old.members, 1, 2, ("flashe",))
    identities = [Identity(bytes([i + 1]) * 32) for i in range(5)]
    pinned = write_signed(tmp_path / "other", other, identities)
    grid.contexts[104].node_config.update(pinned)
    assert set(agreed(grid).members) == {100, 101, 102, 103}


# --- words ---


def test_each_reason_is_said_once() -> None:
    said = reasons({3: "no", 1: "no", 2: "yes"})
    assert said == "2 nodes, first 1: no; node 2: yes"
    assert reasons({}) == "no node reported an error"
    assert reasons({i: f"reason {i}" for i in range(9)}).count(";") == 4

"""Key agreement as the server drives it: whoever fails is named and left out, or nobody agrees."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flhe.errors import QuorumError
from flhe.keys.roster.roster import Roster
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import ATTEMPTS, Agreed, agree
from flhe.training.contract import Contract
from tests.strategies.puppets import Fate, Log, Puppets, new_node, pin, put_identity, restaged, told

pytestmark = pytest.mark.usefixtures("quick")

CONTRACT = Contract()
RELAYS = ("advertise", "share", "confirm")
Setup = Callable[[Puppets], object]


def agreed(grid: Puppets, run_id: int = 7) -> Agreed:
    stream = StreamGrid(grid)
    try:
        return agree(stream, grid.get_node_ids(), CONTRACT, run_id=run_id, timeout=60)
    finally:
        grid.close()


def test_all_of_them_agree(tmp_path: Path) -> None:
    """Under the id of the federation, which may be another run's."""
    size = 4
    grid = Puppets(tmp_path, size)
    done = agreed(grid, run_id=8)
    assert done.number == 0
    assert done.members == {100 + i: grid.identity(i).public for i in range(size)}
    assert len(done.confirms) == size
    assert len(done.epoch) == 16
    roster = Roster.first_use(done.members.values())
    assert done.roster_hash == roster.hash
    ranks = [done.rank(node) for node in done.members]
    assert [roster.rank(key) for key in done.members.values()] == ranks
    # Each relay is one message a node.
    assert [stage for _, stage, _ in grid.sent] == [s for s in RELAYS for _ in range(size)]
    assert all(set(content) == {records.STAGE} for _, _, content in grid.sent)
    assert (tmp_path / "node-0" / "runs" / "8" / "agreement").exists()


def test_what_most_tell_of_collusion(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 5)
    grid.lies([100], "confirm", lambda _, reply: told(reply).update(bounds=[5, 0, 2]))
    assert agreed(grid).colluders == Roster.default_collusion(5)


# --- nodes that fail on the way, or do not belong ---


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", RELAYS)
def test_one_that_fails_is_left_out(tmp_path: Path, stage: str, fate: Fate, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, at, round_: fate if (node, at) == (101, stage) else None
    done = agreed(grid)
    assert set(done.members) == {100, 102, 103}
    assert done.number == (0 if stage == "advertise" else 1)
    why = "the node is unavailable" if fate == "dead" else "no answer within 60 s"
    assert f"node 101: {why}" in caplog.text or f"node 101 is left out: {why}" in caplog.text
    assert 101 not in grid.stages("confirm")[-3:]


def policy(_: int, reply: Message) -> Message:
    """A refusal, with the metadata of the answer turned around."""
    request = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return Message(Error(code=1010, reason="flhe/policy"), reply_to=request)


def says(answer: dict[str, Any]) -> Any:
    """A lie: nothing but this."""
    record = ConfigRecord({"v": records.PROTOCOL, **answer})
    return lambda _, reply: reply.content.update({records.REPLY: record})


def of_another_run(*nodes: int) -> Setup:
    """They are not told which federation a stage belongs to: then it is the run's own."""

    def unnamed(node: int, _: str, content: RecordDict) -> RecordDict:
        if node not in nodes:
            return content
        fields = dict(content[records.STAGE])
        del fields["federation"]
        return RecordDict({records.STAGE: ConfigRecord(fields)})

    def setup(grid: Puppets) -> None:
        grid.rewrite = unnamed
        for node in nodes:
            grid.contexts[node].run_id = 8

    return setup


def of_another_version(grid: Puppets) -> None:
    older = records.PROTOCOL - 1
    grid.rewrite = lambda node, _, content: restaged(content, v=older) if node == 104 else content


def without_the_mod(grid: Puppets) -> None:
    node = new_node()

    def mixed(message: Message, context: Context) -> Message:
        if context.node_id != 104:
            return node(message, context)
        return Message(RecordDict({"metrics": ConfigRecord({"a": 1})}), reply_to=message)

    grid.app = mixed


def of_another_roster(grid: Puppets) -> None:
    """A site that forgot to install the new one must not stop those that agree."""
    pin(grid, range(5), 5)
    pin(grid, [4], 5, "other", collusion=1)


WRONG: dict[str, tuple[Any, str]] = {
    "refused": (policy, "flhe/policy: its policy refuses this run"),
    "nothing": (says({}), ""),
    "garbage": (says({"envelope": b"x", "envelopes": [b"x"] * 4}), ""),
}
STRANGE: dict[str, tuple[Setup, str]] = {
    **{
        f"{name} at {stage}": (lambda grid, at=stage, lie=lie: grid.lies([104], at, lie), said)
        for name, (lie, said) in WRONG.items()
        for stage in RELAYS
    },
    "without the mod": (without_the_mod, "left out: its app has no HEMod: put HEMod() first"),
    "of another run": (of_another_run(104), "left out: advertise message: run_id is 8, expected 7"),
    "not listed": (lambda grid: pin(grid, range(5), 4), "left out: flhe/protocol"),
    "of another roster": (of_another_roster, "compare flhe-roster-hash"),
    "of another version": (of_another_version, "flhe/version: it runs another version of flhe"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_one_that_does_not_belong_is_left_out(tmp_path: Path, name: str, caplog: Log) -> None:
    """It is the one to leave out, not those who saw its messages."""
    grid, (setup, said) = Puppets(tmp_path, 5), STRANGE[name]
    setup(grid)
    assert sorted(agreed(grid).members) == [100, 101, 102, 103]
    assert said in caplog.text
    assert "node 104" in caplog.text


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


# --- nobody agrees ---


def fates(of: Callable[[Puppets, int, str], Fate]) -> Setup:
    return lambda grid: setattr(grid, "fate", lambda node, stage, _: of(grid, node, stage))


def a_different_one(grid: Puppets, node: int, stage: str) -> Fate:
    fails = {8: (100, "share"), 15: (101, "confirm"), 21: (102, "share")}
    return "dead" if fails.get(len(grid.stages("advertise"))) == (node, stage) else None


def copied_directory(grid: Puppets) -> None:
    agreed(Puppets(grid.homes[0].parent, 3))
    shutil.copytree(grid.homes[0], grid.homes[3])


def one_directory(grid: Puppets) -> None:
    grid.contexts[101].node_config["flhe-home"] = str(grid.homes[0])


def fewer_than_the_roster_wants(grid: Puppets) -> None:
    pin(grid, range(5), 5, collusion=1)
    grid.fate = lambda node, *_: "dead" if node in (103, 104) else None


TWICE = "two nodes share one identity: give each a state dir"
NOBODY: dict[str, tuple[int, Setup, str, int]] = {
    "two are too few": (2, lambda _: None, "only 2 nodes advertised a key, 3 or more are needed", 2),
    **{
        f"one of three fails at {stage}": (
            3,
            fates(lambda _, node, at, stage=stage: "dead" if (node, at) == (102, stage) else None),  # type: ignore[misc]
            f"no key was agreed on: {why}.*node 102: ",
            3,
        )
        for stage, why in zip(
            RELAYS, ("only 2 nodes advertised", *["1 of 3 nodes did not answer"] * 2), strict=True
        )
    },
    "a different one each time": (
        8, fates(a_different_one), "node 102: the node is unavailable", 8 + 7 + 6,
    ),
    "all are silent": (
        4, fates(lambda *_: "silent"), "4 nodes, first 100: no answer within 60 s", 4,
    ),
    "all of another run": (3, of_another_run(100, 101, 102), "run_id is 8, expected 7", 3),
    "one seed in two places": (
        4, lambda grid: [put_identity(grid.homes[i], bytes(32)) for i in (0, 1)], TWICE, 4,
    ),
    "a directory that was copied": (4, copied_directory, TWICE, 4),
    "two in one directory": (4, one_directory, TWICE, 4),
    "fewer than the roster wants": (
        5, fewer_than_the_roster_wants, "flhe/quorum: too few members", 5,
    ),
}  # fmt: skip
"""Nodes, what is wrong, what is said, and how many were asked to begin: nobody is asked in vain."""


@pytest.mark.parametrize("name", NOBODY)
def test_where_nobody_agrees_it_is_said_why(tmp_path: Path, name: str) -> None:
    size, setup, said, asked = NOBODY[name]
    grid = Puppets(tmp_path, size)
    setup(grid)
    with pytest.raises(QuorumError, match=said):
        agreed(grid)
    assert len(grid.stages("advertise")) == asked
    assert (said != TWICE) or not grid.stages("share")
    assert ATTEMPTS == 3

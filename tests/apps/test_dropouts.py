"""Nodes that play dead: who, where and how often follows from the seed, and only in training."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.mods import records
from flhe_app.dropouts import STAGES, dropout, drops_at, victim

AROUND: list[tuple[str | None, str]] = [
    ("advertise", "train"),
    ("joint-sum", "train"),
    ("status", "train"),
    ("sync", "train"),
    ("evaluate", "evaluate"),
]
"""Messages that name no round of training."""


def context(partition: int, **config: Any) -> Context:
    return Context(
        run_id=1,
        node_id=100 + partition,
        node_config={"partition-id": partition, "num-partitions": 8},
        state=RecordDict(),
        run_config={"nodes": 8, **config},
    )


class App:
    """Counts what comes through to it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, asked: Message, _context: Context) -> Message:
        self.calls += 1
        return Message(RecordDict(), reply_to=asked)

    def ask(self, here: Context, stage: str | None, round_: int, kind: str = "train") -> bool:
        """Whether a node answers; without a stage it is a message of a plain run."""
        content = RecordDict()
        if stage is None:
            content["config"] = ConfigRecord({"server-round": round_})
        else:
            content[records.STAGE] = records.stage_record(stage, round=round_)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        asked = Message(content, 100, kind)
        asked.metadata.__dict__["_message_id"] = "1"
        reply = dropout(asked, here, self)
        assert not reply.has_error() or reply.error.code == 5
        return not reply.has_error()


def test_who_drops_out_and_where_follows_from_the_seed() -> None:
    for nodes, drops in ((8, 2), (5, 0), (20, 6)):
        for round_ in range(1, 40):
            gone = [drops_at(7, round_, i, nodes, drops) is not None for i in range(nodes)]
            assert sum(gone) == drops
    seen = [(i, drops_at(0, r, i, 8, 2)) for r in range(1, 200) for i in range(8)]
    assert {place for _, place in seen} == {None, *STAGES}
    victims = [victim(seed, 2, 8) for seed in range(400)]
    for chosen in ([i for i, place in seen if place], victims):
        counts = Counter(chosen)
        assert set(counts) == set(range(8))
        assert min(counts.values()) > 20


@pytest.mark.parametrize("place", STAGES)
def test_who_drops_out_stays_away_until_the_round_is_over(place: str) -> None:
    round_, partition = next(
        (r, i) for r in range(1, 500) for i in range(8) if drops_at(0, r, i, 8, 2) == place
    )
    here, app = context(partition, drops=2), App()
    expected = {
        "round": ([False, False, False], 0),
        "answer": ([False, False, False], 1),
        "consist": ([True, False, False], 1),
        "unmask": ([True, True, False], 2),
    }[place]
    answers = [app.ask(here, stage, round_) for stage in ("round", "consist", "unmask")]
    assert (answers, app.calls) == expected
    assert app.ask(here, None, round_) == expected[0][0]  # a plain run's training
    assert all(app.ask(here, stage, round_, kind) for stage, kind in AROUND)
    assert app.ask(here, None, round_, "evaluate")
    assert app.ask(context(partition, drops=0), "round", round_)
    back = next(r for r in range(round_ + 1, 999) if drops_at(0, r, partition, 8, 2) is None)
    assert app.ask(here, "round", back)


@pytest.mark.parametrize("first", ["round", "consist", None])
def test_who_is_killed_never_answers_again(
    first: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`first` is the first training message that it sees from its round on; None is a plain run's."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    here, app = context(victim(0, 2, 8), kill=2), App()
    alive = [(None, 1, "train"), ("round", 1, "train"), ("unmask", 1, "train")]
    alive += [(stage, 1, kind) for stage, kind in AROUND]
    assert all(app.ask(here, *asked) for asked in alive)
    dead = [(first, 2, "train"), ("update", 2, "train"), ("round", 3, "train"), (None, 9, "train")]
    dead += [(stage, 1, kind) for stage, kind in AROUND] + [(None, 1, "evaluate")]
    assert not any(app.ask(here, *asked) for asked in dead)
    assert app.calls == len(alive)
    said = [r.getMessage() for r in caplog.records if r.name == "flwr"]
    assert said == ["round 2: this node is killed, for good (kill=2)"]
    # Flower starts a resumed run's nodes with empty contexts.
    assert not app.ask(context(victim(0, 2, 8), kill=2), "round", 4)


def test_one_is_killed_and_others_drop_out() -> None:
    dead, app = victim(0, 2, 8), App()
    contexts = [context(i, kill=2, drops=2) for i in range(8)]
    for round_ in range(1, 30):
        gone = {i for i in range(8) if drops_at(0, round_, i, 8, 2) in ("round", "answer")}
        gone |= {dead} if round_ >= 2 else set()
        assert {i for i in range(8) if not app.ask(contexts[i], "round", round_)} == gone
    assert [i for i in range(8) if contexts[i].state] == [dead]

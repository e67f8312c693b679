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


def context(partition: int, **config: Any) -> Context:
    return Context(
        run_id=1,
        node_id=100 + partition,
        node_config={"partition-id": partition, "num-partitions": 8},
        state=RecordDict(),
        run_config={"nodes": 8, "drops": 2, **config},
    )


def message(stage: str | None, round_: int, kind: str = "train") -> Message:
    content = RecordDict()
    if stage is None:
        content["config"] = ConfigRecord({"server-round": round_})
    else:
        content[records.STAGE] = records.stage_record(stage, round=round_)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    found = Message(content, 100, kind)
    found.metadata.__dict__["_message_id"] = "1"
    return found


class App:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, asked: Message, _context: Context) -> Message:
        self.calls += 1
        return Message(RecordDict(), reply_to=asked)


def test_so_many_of_so_many_drop_out_of_each_round() -> None:
    for nodes, drops in ((8, 2), (5, 0), (20, 6)):
        for round_ in range(1, 40):
            gone = [drops_at(7, round_, i, nodes, drops) is not None for i in range(nodes)]
            assert sum(gone) == drops


def test_everybody_and_every_stage_comes_up() -> None:
    seen = [(i, drops_at(0, r, i, 8, 2)) for r in range(1, 200) for i in range(8)]
    assert {place for _, place in seen} == {None, *STAGES}
    counts = Counter(i for i, place in seen if place)
    assert min(counts.values()) > 20


@pytest.mark.parametrize("place", STAGES)
def test_who_drops_out_stays_away_until_the_round_is_over(place: str) -> None:
    round_, partition = next(
        (r, i) for r in range(1, 500) for i in range(8) if drops_at(0, r, i, 8, 2) == place
    )
    here = context(partition)
    expected = {
        "round": {"round": 0, "consist": 0, "unmask": 0},
        "answer": {"round": 1, "consist": 0, "unmask": 0},
        "consist": {"round": 1, "consist": 0, "unmask": 0},
        "unmask": {"round": 1, "consist": 1, "unmask": 0},
    }[place]
    for stage, calls in expected.items():
        app = App()
        reply = dropout(message(stage, round_), here, app)
        assert app.calls == calls, stage
        lost = calls == 0 or (place, stage) == ("answer", "round")
        assert reply.has_error() == lost, stage
    back = next(r for r in range(round_ + 1, 999) if drops_at(0, r, partition, 8, 2) is None)
    assert not dropout(message("round", back), here, App()).has_error()


@pytest.mark.parametrize(
    ("stage", "kind", "drops", "lost"),
    [
        (None, "train", 2, ("round", "answer")),  # of a plain run
        ("round", "train", 2, ("round", "answer")),
        ("advertise", "train", 2, ()),
        ("status", "train", 2, ()),
        ("evaluate", "evaluate", 2, ()),
        ("round", "train", 0, ()),
    ],
)
def test_nothing_but_training_is_lost(
    stage: str | None, kind: str, drops: int, lost: tuple[str, ...]
) -> None:
    for round_ in range(1, 30):
        for partition in range(8):
            app, place = App(), drops_at(0, round_, partition, 8, 2)
            reply = dropout(message(stage, round_, kind), context(partition, drops=drops), app)
            gone = place in lost
            assert (app.calls, reply.has_error()) == (not gone or place == "answer", gone)


AROUND: list[tuple[str | None, str]] = [
    ("advertise", "train"),
    ("joint-sum", "train"),
    ("status", "train"),
    ("sync", "train"),
    ("evaluate", "evaluate"),
]
"""Messages that name no round of training."""


def killing(partition: int, drops: int = 0) -> Context:
    """A node of a run that kills one in round 2."""
    return context(partition, drops=drops, kill=2)


@pytest.mark.parametrize("first", ["round", "consist", None])
def test_who_is_killed_never_answers_again(
    first: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`first` is the first training message that it sees from its round on; None is a plain run's."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    here, app = killing(victim(0, 2, 8)), App()
    alive = [(None, 1, "train"), ("round", 1, "train"), ("unmask", 1, "train")]
    alive += [(stage, 1, kind) for stage, kind in AROUND]
    for stage, round_, kind in alive:
        assert not dropout(message(stage, round_, kind), here, app).has_error()
    assert app.calls == len(alive)
    dead = [(first, 2, "train"), ("update", 2, "train"), ("round", 3, "train"), (None, 9, "train")]
    dead += [(stage, 1, kind) for stage, kind in AROUND] + [(None, 1, "evaluate")]
    for stage, round_, kind in dead:
        reply = dropout(message(stage, round_, kind), here, app)
        assert reply.has_error()
        assert reply.error.code == 5
    assert app.calls == len(alive)
    said = [r.getMessage() for r in caplog.records if r.name == "flwr"]
    assert said == ["round 2: this node is killed, for good (kill=2)"]


def test_the_others_live_on_and_one_that_comes_in_later_is_as_dead() -> None:
    app, asked = App(), [(1, "round"), (2, "round"), (2, "unmask"), (3, None), (3, "status")]
    others = [i for i in range(8) if i != victim(0, 2, 8)]
    for partition in others:
        here = killing(partition)
        for round_, stage in asked:
            assert not dropout(message(stage, round_), here, app).has_error()
        assert not here.state
    assert app.calls == len(others) * len(asked)
    # Flower starts a resumed run's nodes with empty contexts.
    assert dropout(message("round", 4), killing(victim(0, 2, 8)), app).has_error()


def test_the_victim_follows_from_the_seed() -> None:
    found = Counter(victim(seed, 2, 8) for seed in range(400))
    assert set(found) == set(range(8))
    assert min(found.values()) > 20


def test_one_is_killed_and_others_drop_out() -> None:
    dead = victim(0, 2, 8)
    contexts = [killing(i, drops=2) for i in range(8)]
    for round_ in range(1, 30):
        gone = {i for i in range(8) if drops_at(0, round_, i, 8, 2) in ("round", "answer")}
        gone |= {dead} if round_ >= 2 else set()
        lost = {
            i for i in range(8) if dropout(message("round", round_), contexts[i], App()).has_error()
        }
        assert lost == gone

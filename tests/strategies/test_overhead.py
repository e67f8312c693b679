"""Every second and every byte of a run is in one phase, whatever the scheme and whatever goes wrong."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from flhe.mods import records
from flhe.mods.table import STAGES as KNOWN
from flhe.strategies import flashe_fedavg
from flhe.strategies.overhead import (
    ADD,
    ENCRYPT,
    EVALUATE,
    EXCHANGE,
    KEYS,
    MASKING,
    OPEN,
    OTHER,
    PHASES,
    STAGES,
    TRAIN,
    UPLOAD,
    Meter,
    Spent,
    phase_of,
    server_memory,
    sound,
)
from tests.strategies.accounts import BETWEEN, check_accounts
from tests.strategies.puppets import Puppets, play, told


class Machine:
    """A clock and a memory that tests set."""

    def __init__(self) -> None:
        self.now, self.held, self.most = 50.0, 100, 400

    def meter(self) -> Meter:
        return Meter(lambda: self.now, lambda: (self.held, self.most))

    def hold(self, held: int) -> None:
        self.held, self.most = held, max(self.most, held)


def seconds(spent: Spent) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in spent.phases if phase.seconds}


def peaks(spent: Spent) -> dict[str, int | None]:
    return {phase.name: phase.server_bytes for phase in spent.phases}


# --- the account by itself ---


def test_a_request_lasts_until_its_replies_are_in_and_what_is_done_meanwhile_is_apart() -> None:
    machine = Machine()
    meter = machine.meter()
    machine.now += 1
    request = meter.open(TRAIN)
    machine.now += 2
    with meter.doing(ADD):
        machine.now += 4
        with meter.doing(OPEN):
            machine.now += 8
        machine.now += 16
    machine.now += 32
    meter.close(request)
    machine.now += 64
    spent = meter.take()
    assert seconds(spent) == {OTHER: 65, TRAIN: 34, ADD: 20, OPEN: 8}
    assert spent.wall_s == 127
    assert seconds(meter.take()) == {}


def test_what_is_done_ends_with_an_error_too() -> None:
    machine = Machine()
    meter = machine.meter()

    def fail() -> None:
        with meter.doing(ADD):
            machine.now += 1
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    machine.now += 2
    assert seconds(meter.take()) == {ADD: 1, OTHER: 2}


def test_a_request_that_is_over_closes_no_later_one() -> None:
    machine = Machine()
    meter = machine.meter()
    first = meter.open(TRAIN)
    second = meter.open(MASKING)
    machine.now += 1
    meter.close(first)
    machine.now += 2
    meter.close(second)
    meter.close(second)
    machine.now += 4
    assert seconds(meter.take()) == {MASKING: 3, OTHER: 4}


def test_an_account_can_be_taken_in_the_middle() -> None:
    machine = Machine()
    meter = machine.meter()
    request = meter.open(EVALUATE)
    machine.now += 1
    assert seconds(meter.take()) == {EVALUATE: 1}
    machine.now += 2
    meter.close(request)
    assert seconds(meter.take()) == {EVALUATE: 2}


@pytest.mark.parametrize(
    ("asked", "named"), [(TRAIN, ENCRYPT), (EXCHANGE, ENCRYPT), (EVALUATE, OPEN), (KEYS, None)]
)
def test_the_slowest_nodes_cryptography_is_taken_out_of_the_wait(
    asked: str, named: str | None
) -> None:
    machine = Machine()
    meter = machine.meter()
    request = meter.open(asked)
    machine.now += 10
    for node, said in ((1, 1.0), (2, 2.0), (1, 2.5), (3, 0.5)):
        meter.told(node, said)
    meter.close(request)
    expected = {asked: 6.5, named: 3.5} if named else {asked: 10}
    assert seconds(meter.take()) == expected


def test_no_node_can_make_a_round_longer() -> None:
    machine = Machine()
    meter = machine.meter()
    meter.open(TRAIN)
    machine.now += 10
    meter.told(1, 1e9)
    spent = meter.take()
    assert seconds(spent) == {ENCRYPT: 10}
    assert spent.wall_s == 10


@pytest.mark.parametrize("told", [math.inf, math.nan, -1.0, 3, "3", None])
def test_what_can_be_no_seconds_is_none(told: object) -> None:
    assert sound(told) == 0
    assert sound(3.5) == 3.5


def test_what_comes_back_of_a_round_is_an_upload() -> None:
    machine = Machine()
    meter = machine.meter()
    for phase in (TRAIN, EXCHANGE, MASKING, EVALUATE):
        meter.sent(phase, 7)
        request = meter.open(phase)
        machine.now += 4
        meter.received(100, 1.0)
        meter.close(request)
    spent = meter.take()
    assert seconds(spent) == {TRAIN: 3, EXCHANGE: 3, UPLOAD: 2, MASKING: 4, EVALUATE: 4}
    assert {p.name: p.bytes_up for p in spent.phases if p.bytes_up} == {
        UPLOAD: 200,
        MASKING: 100,
        EVALUATE: 100,
    }
    assert (spent.up, spent.down) == (400, 28)


def test_memory_is_the_most_at_a_phases_ends_or_a_new_record_within() -> None:
    machine = Machine()
    meter = machine.meter()
    machine.hold(150)
    request = meter.open(TRAIN)
    machine.hold(900)  # and given back before anybody looks
    machine.hold(120)
    with meter.doing(ADD):
        machine.hold(300)  # less than has been
        machine.hold(200)
    meter.close(request)
    machine.hold(80)
    spent = meter.take()
    assert peaks(spent) == {OTHER: 200, TRAIN: 900, ADD: 200}
    assert spent.server_bytes == 900
    meter.told(1, 1.0)
    assert meter.take().server_bytes == 80


def test_where_nothing_tells_of_memory_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> int:
        raise ProcessLookupError

    held, most = server_memory()
    assert 0 < held <= 1.05 * most  # Linux tells it late
    monkeypatch.setattr("flhe.strategies.overhead.resident", nobody)
    assert server_memory() == (0, 0)
    spent = Meter().take()
    assert peaks(spent) == {OTHER: None}
    assert spent.server_bytes is None


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("open", "close", "enter", "leave", "wait", "sent", "got", "told", "take")),
        st.sampled_from(tuple(PHASES)),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_is_counted_adds_up(steps: list[Step]) -> None:
    machine = Machine()
    meter, taken = machine.meter(), list[Spent]()
    inner: list[Any] = []
    requests, up, down = [0], 0, 0
    for what, phase, number in steps:
        if what == "open":
            requests.append(meter.open(phase))
        elif what == "close":
            meter.close(requests[number % len(requests)])
        elif what == "enter":
            inner.append(meter.doing(phase))
            inner[-1].__enter__()
        elif what == "leave" and inner:
            inner.pop().__exit__(None, None, None)
        elif what == "wait":
            machine.now += number
        elif what == "sent":
            meter.sent(phase, number)
            down += number
        elif what == "got":
            machine.now += number
            meter.received(number, number)
            up += number
        elif what == "told":
            meter.told(number % 3, number)
        elif what == "take":
            taken.append(meter.take())
    taken.append(meter.take())
    assert sum(spent.wall_s for spent in taken) == machine.now - 50
    assert (sum(s.up for s in taken), sum(s.down for s in taken)) == (up, down)
    for spent in taken:
        assert sum(phase.seconds for phase in spent.phases) == spent.wall_s
        assert all(phase.seconds >= 0 for phase in spent.phases)
        names = [phase.name for phase in spent.phases]
        assert names == [name for name in PHASES if name in names]


# --- which phase it is ---


def test_every_stage_has_a_phase() -> None:
    assert {stage for _, stage in KNOWN} == set(STAGES)
    assert {*STAGES.values(), *BETWEEN} <= set(PHASES)


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("train", TRAIN), ("train.other", TRAIN), ("evaluate", EVALUATE), ("query", OTHER)],
)
def test_a_plain_message_is_of_its_type(kind: str, phase: str) -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    assert phase_of(Message(RecordDict({"c": ConfigRecord({"a": 1})}), 5, kind)) == phase
    ours = RecordDict({records.STAGE: records.stage_record("unmask")})
    assert phase_of(Message(ours, 5, kind)) == MASKING
    unknown = RecordDict({records.STAGE: records.stage_record("of tomorrow")})
    assert phase_of(Message(unknown, 5, kind)) == OTHER


# --- in a run ---


def account(grid: Puppets, rounds: int, **how: Any) -> None:
    strategy, _ = play(flashe_fedavg, grid, rounds, **how)
    assert strategy.ending is not None
    check_accounts(grid, strategy.ending)


@pytest.mark.usefixtures("quick")
def test_attempts_that_fail_and_nodes_that_come_back_are_counted(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    asked: Counter[int] = Counter()

    def fate(node: int, stage: str, round_: int) -> Any:
        if stage == "round" and round_ == 2:
            asked[node] += 1
            return "silent" if node < 103 and asked[node] == 1 else None
        return "dead" if stage == "evaluate" and round_ == 1 and node == 100 else None

    grid.fate = fate
    account(grid, 3, round_timeout=1.0)
    assert grid.survivors == [4] * 3
    assert len(grid.stages("round")) == 4 * 4  # one round was asked twice


@pytest.mark.usefixtures("quick")
def test_what_nodes_tell_of_their_seconds_bends_no_account(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    absurd = {100: 1e12, 101: -1e12, 102: math.nan, 103: math.inf}

    def forge(node: int, _stage: str, reply: Message) -> Message:
        if "crypto-s" in told(reply):
            told(reply)["crypto-s"] = absurd[node]
        return reply

    grid.forge = forge
    account(grid, 2)
    assert all(math.isfinite(report.crypto_s) for report in grid.reports)

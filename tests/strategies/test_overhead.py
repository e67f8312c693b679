"""Every second and every byte of a run is in one phase, whatever the scheme and whatever goes wrong."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from flhe.mods import records
from flhe.mods.he_mod import STAGES as KNOWN
from flhe.mods.records import message_bytes
from flhe.strategies import FlasheFedAvg
from flhe.strategies.overhead import (
    ADD,
    CATCH_UP,
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
    Phase,
    Spent,
    phase_of,
    resident,
    server_memory,
    sound,
)
from tests.strategies.puppets import Puppets, play, told

Step = tuple[Any, ...]

# --- what every run's accounts add up to ---

BETWEEN = (KEYS, CATCH_UP, OTHER)
"""Phases that a round may be in before its clock starts; all others are part of its `round_s`."""


def carried(grid: Puppets) -> tuple[Counter[str], Counter[str]]:
    """Bytes up and down by phase, as the grid itself carried them."""
    up, down = Counter[str](), Counter[str]()
    for _, stage, content in grid.sent:
        down[STAGES[stage]] += message_bytes(content)
    for _, stage, reply in grid.replies:
        if not reply.has_error():
            phase = STAGES[stage]
            up[UPLOAD if phase in (TRAIN, EXCHANGE) else phase] += message_bytes(reply.content)
    return +up, +down


def counted(*accounts: tuple[Phase, ...]) -> tuple[Counter[str], Counter[str]]:
    up, down = Counter[str](), Counter[str]()
    for phases in accounts:
        for phase in phases:
            up[phase.name] += phase.bytes_up
            down[phase.name] += phase.bytes_down
    return +up, +down


def check_accounts(grid: Puppets, ending: Spent) -> None:
    assert counted(*(report.phases for report in grid.reports), ending.phases) == carried(grid)
    for report in grid.reports:
        within = [phase.seconds for phase in report.phases if phase.name not in BETWEEN]
        assert sum(within) <= report.round_s + 1e-3
        assert sum(p.seconds for p in report.phases) == pytest.approx(report.wall_s, abs=1e-6)
        assert report.round_s <= report.wall_s + 5  # read later, and a machine may be busy
        assert all(phase.seconds >= -1e-9 for phase in report.phases)
        assert sum(phase.bytes_up for phase in report.phases) == report.bytes_up
        assert sum(phase.bytes_down for phase in report.phases) == report.bytes_down
        assert report.server_bytes is not None
        held = [phase.server_bytes for phase in report.phases if phase.server_bytes]
        assert max(held) == report.server_bytes <= 1.05 * resident("VmHWM")  # Linux tells it late


# --- a server of which a test knows all ---


class Server:
    """One with a clock and a memory that tests set; what it does is a row of steps."""

    def __init__(self) -> None:
        self.now, self.held, self.most = 50.0, 100, 400
        self.up = self.down = 0
        self.meter = Meter(lambda: self.now, lambda: (self.held, self.most))
        self.requests = [0]
        self.inner: list[ExitStack] = []

    def does(self, *steps: Step) -> Spent:
        """Its account after these."""
        for what, *how in steps:
            getattr(self, what)(*how)
        return self.meter.take()

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def hold(self, held: int) -> None:
        self.held, self.most = held, max(self.most, held)

    def open(self, phase: str) -> None:
        self.requests.append(self.meter.open(phase))

    def close(self, number: int = -1) -> None:
        self.meter.close(self.requests[number % len(self.requests)])

    def enter(self, phase: str) -> None:
        self.inner.append(ExitStack())
        self.inner[-1].enter_context(self.meter.doing(phase))

    def leave(self) -> None:
        if self.inner:
            self.inner.pop().close()

    def sent(self, phase: str, count: int) -> None:
        self.meter.sent(phase, count)
        self.down += count

    def got(self, count: int, seconds: float) -> None:
        self.now += seconds
        self.meter.received(count, seconds)
        self.up += count

    def told(self, node: int, seconds: float) -> None:
        self.meter.told(node, seconds)


def seconds(spent: Spent) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in spent.phases if phase.seconds}


# --- the account by itself ---

WAIT = [("wait", 1), ("open", TRAIN), ("wait", 2)]
INNER = [("enter", ADD), ("wait", 4), ("enter", OPEN), ("wait", 8), ("leave",), ("wait", 16)]
LATE = [("close", 1), ("wait", 8), ("close", 2)]
TOLD = [("told", 1, 1.0), ("told", 2, 2.0), ("told", 1, 2.5), ("told", 3, 0.5)]
ACCOUNTS: dict[str, tuple[list[Step], dict[str, float]]] = {
    "a request lasts until its replies are in, and what is done meanwhile is apart": (
        [*WAIT, *INNER, ("leave",), ("wait", 32), ("close",), ("wait", 64)],
        {OTHER: 65, TRAIN: 34, ADD: 20, OPEN: 8},
    ),
    "a request that is over closes no later one": (
        [*WAIT, ("open", MASKING), ("wait", 4), *LATE, ("close", 2), ("wait", 16)],
        {OTHER: 17, TRAIN: 2, MASKING: 12},
    ),
    "no node can make a round longer": (
        [("open", TRAIN), ("wait", 10), ("told", 1, 1e9)],
        {ENCRYPT: 10},
    ),
    **{
        f"of {asked} the slowest node's cryptography is taken out": (
            [("open", asked), ("wait", 10), *TOLD, ("close",)],
            {asked: 6.5, named: 3.5} if named else {asked: 10},
        )
        for asked, named in ((TRAIN, ENCRYPT), (EXCHANGE, ENCRYPT), (EVALUATE, OPEN), (KEYS, ""))
    },
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_accounts(name: str) -> None:
    steps, expected = ACCOUNTS[name]
    server = Server()
    spent = server.does(*steps)
    assert seconds(spent) == expected
    assert spent.wall_s == sum(expected.values())
    assert seconds(server.meter.take()) == {}


def test_an_account_can_be_taken_in_the_middle_and_what_fails_is_over() -> None:
    server = Server()
    assert seconds(server.does(("open", EVALUATE), ("wait", 1))) == {EVALUATE: 1}
    assert seconds(server.does(("wait", 2), ("close",))) == {EVALUATE: 2}
    with pytest.raises(ValueError, match="no"), server.meter.doing(ADD):
        raise ValueError("no")
    assert seconds(server.does(("wait", 2))) == {OTHER: 2}


@pytest.mark.parametrize("told", [math.inf, math.nan, -1.0, 3, "3", None])
def test_what_can_be_no_seconds_is_none(told: object) -> None:
    assert (sound(told), sound(3.5)) == (0, 3.5)


def test_what_comes_back_of_a_round_is_an_upload() -> None:
    phases = (TRAIN, EXCHANGE, MASKING, EVALUATE)
    each = [
        [("sent", p, 7), ("open", p), ("wait", 3), ("got", 100, 1.0), ("close",)] for p in phases
    ]
    spent = Server().does(*(step for steps in each for step in steps))
    assert seconds(spent) == {TRAIN: 3, EXCHANGE: 3, UPLOAD: 2, MASKING: 4, EVALUATE: 4}
    up = {p.name: p.bytes_up for p in spent.phases if p.bytes_up}
    assert up == {UPLOAD: 200, MASKING: 100, EVALUATE: 100}
    assert (spent.up, spent.down) == (400, 28)


def test_memory_is_the_most_at_a_phases_ends_or_a_new_record_within() -> None:
    server = Server()
    in_add = [("enter", ADD), ("hold", 300), ("hold", 200), ("leave",)]  # less than has been
    given_back = [("hold", 900), ("hold", 120)]  # before anybody looks
    steps = [("hold", 150), ("open", TRAIN), *given_back, *in_add, ("close",), ("hold", 80)]
    spent = server.does(*steps)
    peaks = {phase.name: phase.server_bytes for phase in spent.phases}
    assert peaks == {OTHER: 200, TRAIN: 900, ADD: 200}
    assert spent.server_bytes == 900
    assert server.does(("told", 1, 1.0)).server_bytes == 80


def test_where_nothing_tells_of_memory_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> int:
        raise ProcessLookupError

    held, most = server_memory()
    assert 0 < held <= 1.05 * most  # Linux tells it late
    monkeypatch.setattr("flhe.strategies.overhead.resident", nobody)
    assert server_memory() == (0, 0)
    spent = Meter().take()
    assert [(phase.name, phase.server_bytes) for phase in spent.phases] == [(OTHER, None)]
    assert spent.server_bytes is None


phases, numbers = st.sampled_from(tuple(PHASES)), st.integers(0, 9)
steps = st.one_of(
    *(st.tuples(st.just(what), phases) for what in ("open", "enter")),
    *(st.tuples(st.just(what), numbers) for what in ("close", "wait")),
    *(st.tuples(st.just(what), numbers, numbers) for what in ("got", "told")),
    st.tuples(st.just("sent"), phases, numbers),
    st.just(("leave",)),
)


@given(st.lists(st.lists(steps, max_size=30), min_size=1, max_size=4))
def test_whatever_is_counted_adds_up(rows: list[list[Step]]) -> None:
    server = Server()
    taken = [server.does(*row) for row in rows]
    assert sum(spent.wall_s for spent in taken) == server.now - 50
    assert (sum(s.up for s in taken), sum(s.down for s in taken)) == (server.up, server.down)
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
    for stage, expected in (("unmask", MASKING), ("of tomorrow", OTHER)):
        ours = RecordDict({records.STAGE: records.stage_record(stage)})
        assert phase_of(Message(ours, 5, kind)) == expected


# --- in a run ---


def account(grid: Puppets, rounds: int, **how: Any) -> None:
    strategy, _ = play(FlasheFedAvg, grid, rounds, **how)
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

"""Every second and every byte of a run is in one phase, whatever the scheme and whatever goes wrong."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from flhe.mods import MaskingKeyMod
from flhe.mods.he_mod import STAGES as KNOWN
from flhe.mods.records import message_bytes
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
    resident,
    sound,
)
from tests.strategies.puppets import Puppets

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


# --- the account by itself ---

Step = tuple[Any, ...]
WAIT = [("wait", 1), ("open", TRAIN), ("wait", 2)]
INNER = [("enter", ADD), ("wait", 4), ("enter", OPEN), ("wait", 8), ("leave",), ("wait", 16)]
LATE = [("close", 1), ("wait", 8), ("close", 2)]
TOLD = [("told", 1, 1.0), ("told", 2, 2.0), ("told", 1, 2.5), ("told", 3, 0.5)]
ACCOUNTS: dict[str, tuple[list[Step], dict[str, float]]] = {
    "a request lasts until its replies are in, and what is done meanwhile is apart": (
        [*WAIT, *INNER, ("leave",), ("wait", 32), ("close", 1), ("wait", 64)],
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
            [("open", asked), ("wait", 10), *TOLD, ("close", 1)],
            {asked: 6.5, named: 3.5} if named else {asked: 10},
        )
        for asked, named in ((TRAIN, ENCRYPT), (EXCHANGE, ENCRYPT), (EVALUATE, OPEN), (KEYS, ""))
    },
}
"""What a meter is told or lives through, and the seconds of each phase then."""


def seconds(spent: Spent) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in spent.phases if phase.seconds}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_accounts(name: str) -> None:
    (steps, expected), now, inner = ACCOUNTS[name], [50.0], list[Any]()
    meter = Meter(lambda: now[0], lambda: (100, 400))
    for what, *how in steps:
        if what == "wait":
            now[0] += how[0]
        elif what == "enter":
            inner.append(meter.doing(*how))
            inner[-1].__enter__()
        elif what == "leave":
            inner.pop().__exit__(None, None, None)
        else:
            getattr(meter, what)(*how)
    spent = meter.take()
    assert seconds(spent) == expected
    assert spent.wall_s == sum(expected.values())
    assert seconds(meter.take()) == {}


@pytest.mark.parametrize("told", [math.inf, math.nan, -1.0, 3, "3", None])
def test_what_can_be_no_seconds_is_none(told: object) -> None:
    assert (sound(told), sound(3.5)) == (0, 3.5)


def test_memory_is_the_most_at_a_phases_ends_or_a_new_record_within() -> None:
    held = [100, 400]
    meter = Meter(lambda: 50.0, lambda: (held[0], held[1]))

    def hold(count: int) -> None:
        held[:] = count, max(held[1], count)

    hold(150)
    request = meter.open(TRAIN)
    hold(900)  # and given back before anybody looks
    hold(120)
    with meter.doing(ADD):
        hold(300)  # less than has been
        hold(200)
    meter.close(request)
    hold(80)
    spent = meter.take()
    peaks = {phase.name: phase.server_bytes for phase in spent.phases}
    assert peaks == {OTHER: 200, TRAIN: 900, ADD: 200}
    assert spent.server_bytes == 900
    meter.told(1, 1.0)
    assert meter.take().server_bytes == 80


# --- which phase it is ---


def test_every_stage_has_a_phase() -> None:
    assert {stage for _, stage in (*KNOWN, *MaskingKeyMod.STAGES)} == set(STAGES)
    assert {*STAGES.values(), *BETWEEN} <= set(PHASES)

"""What every run's accounts of seconds and bytes add up to."""

from __future__ import annotations

from collections import Counter

import pytest

from flhe.mods.records import message_bytes
from flhe.strategies.overhead import (
    CATCH_UP,
    EXCHANGE,
    KEYS,
    OTHER,
    STAGES,
    TRAIN,
    UPLOAD,
    Phase,
    Spent,
)
from flhe.strategies.resident import resident
from tests.strategies.puppets import Puppets

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
    """The same, as the strategy says."""
    up, down = Counter[str](), Counter[str]()
    for phases in accounts:
        for phase in phases:
            up[phase.name] += phase.bytes_up
            down[phase.name] += phase.bytes_down
    return +up, +down


def check_accounts(grid: Puppets, ending: Spent) -> None:
    """The laws of every run."""
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

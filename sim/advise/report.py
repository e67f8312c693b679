"""How `flhe advise` answers: a table, reasons, JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from rich import box
from rich.table import Table

from flhe.training.accountant import multiplier_for
from flhe_lab.advise.check import Line
from flhe_lab.advise.ranking import Advice, Prediction
from flhe_lab.bench.host import machine
from flhe_lab.bench.table import HEADINGS, columns

NAME = 22
"""Columns of a name, so that a terminal of 80 shows all."""


def table(answer: Advice) -> Table:
    """All that are ranked, and FedAvg in clear below them."""
    demand, prices = answer.demand, answer.demand.prices
    numbers = ("a round", *HEADINGS[:3], "other\nstages", "GB a\nround", "USD")
    out = Table(
        *columns("seconds of", *numbers, left=("seconds of",)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0),
        title=f"{demand.values:,} values, {demand.clients} clients, {demand.wan.name}, "
        f"dropout {demand.dropout:g}",
        caption=f"projected: seconds of this machine on one thread, nothing computed ahead; links as "
        f"told; {demand.train_s:g} s of training a round; nobody waits for who is missing, and what is "
        f"done again is counted. GB are of 2^30 bytes, of all clients. USD for {demand.rounds} rounds, "
        f"{prices.client_usd_per_hour:.3g} for an hour of a client, {prices.server_usd_per_hour:.3g} "
        "of the server",
    )
    for row in answer.ranked:
        out.add_row(*_cells(row), end_section=row is answer.ranked[-1])
    out.add_row(*_cells(answer.plain))
    return out


def reasons(answer: Advice) -> list[str]:
    """Return a line for each of the others."""
    return [f"Excluded: {each.name}: {'; '.join(each.reasons)}" for each in answer.excluded]


def _cells(row: Prediction) -> tuple[str, ...]:
    seconds = (row.round_s, row.encrypt_s, row.add_s, row.decrypt_s, row.exchange_s)
    shown = [_short(one) if one else "" for one in seconds]
    return (fill(row.name, NAME), *shown, f"{row.round_gb:.3g}", f"{row.usd:.3g}")


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds >= 0.01 else f"{seconds:.2g}"


def to_data(answer: Advice, checked: Sequence[Line] = ()) -> dict[str, Any]:
    """Return everything as JSON values; with the errors of predictions, if they were checked."""
    demand = asdict(answer.demand)
    document = {
        "machine": machine(),
        "asked": demand,
        "ranked": [asdict(row) for row in answer.ranked],
        "plain": asdict(answer.plain),
        "excluded": [asdict(row) for row in answer.excluded],
        "advice": answer.sentence(),
    }
    if checked:
        document["check"] = [
            {**asdict(line), "off": line.off, "verdict": line.verdict} for line in checked
        ]
    return document


def noise(epsilon: float, delta: float, sampling: float, rounds: int) -> str:
    """Say the noise multiplier that keeps so many rounds within a privacy budget.

    Raises ConfigError: none does; PackageError: dp-accounting is missing.
    """
    # Rounded up: with the nearest three digits a run may exceed its budget, and nodes refuse it.
    multiplier, half = (
        math.ceil(1000 * multiplier_for(target, rounds, sampling=sampling, delta=delta)) / 1000
        for target in (epsilon, epsilon / 2)
    )
    return (
        f"Epsilon {epsilon:g} at delta {delta:g} in {rounds} rounds, sampling rate {sampling:g}: noise "
        f"multiplier {multiplier:.3f}; half of that epsilon takes {half:.3f}."
    )

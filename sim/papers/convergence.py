"""What training to the end takes: one round, times the rounds until a model has converged.

As FLASHE (Sec. 6.3), BatchCrypt (Sec. 6.3) and ESAFL (Sec. 8.3) do: one round is measured, or played
(`round_model`), and the product is told. Rounds are the papers' own (`REPORTED`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flhe_lab.advise.prices import GB, Cost, Prices
from flhe_lab.advise.round_model import Breakdown
from flhe_lab.advise.wan import Wan
from flhe_lab.papers.published import rows


@dataclass(frozen=True, slots=True)
class Projection:
    """What training to the end takes."""

    hours: float
    traffic_gb: float
    """One client's, up and down, in GB of 2**30 bytes: what FLASHE's Table 4 tells."""
    bill: Cost  # Of all clients and the server


def project(
    breakdown: Breakdown, rounds: float, prices: Prices, wan: Wan, cohort: int
) -> Projection:
    """Multiply one round.

    `breakdown` is of a surviving client, whose bytes stand for everybody's. Those that drop out are
    billed as well: their machines run, and more traffic than that there cannot be. `rounds` are epochs
    to convergence, times rounds an epoch. The `cohort` is at the sites of `wan`, which tells what
    traffic costs.
    """
    hours = rounds * breakdown.total_s / 3600
    up, down = (rounds * nbytes / GB for nbytes in (breakdown.bytes_up, breakdown.bytes_down))
    return Projection(hours, up + down, billed(hours, up, down, prices, wan, cohort))


def billed(hours: float, up: float, down: float, prices: Prices, wan: Wan, cohort: int) -> Cost:
    """What so many hours cost, and the GB that each client sends and receives.

    All machines run for all of `hours`, idle or not: a round is synchronous.
    """
    machines = hours * (cohort * prices.client_usd_per_hour + prices.server_usd_per_hour)
    sent = up * sum(site.egress_usd_per_gb for site in wan.placed(cohort))
    return Cost(machines, sent + cohort * down * wan.server_egress_usd_per_gb)


REPORTED = rows("trained", "rows")
"""What the papers' tables say of one model trained to the end, misprints included.

An epoch is one round in FLASHE, and many in the others; `reached` is the record, accuracy in percent or
a loss for models named "LSTM"; `traffic_gb` is as the paper tells it, whatever its gigabyte is.
"""


def reported(paper: str, model: str, mode: str) -> Any:
    """The line of that table."""
    who = (paper, model, mode)
    return next(line for line in REPORTED if (line.paper, line.model, line.mode) == who)

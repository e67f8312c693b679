"""What training to the end takes: one round, times the rounds until a model has converged.

As FLASHE (Sec. 6.3), BatchCrypt (Sec. 6.3) and ESAFL (Sec. 8.3) do: one round is measured, or played
(`round_model`), and the product is told. Rounds are the papers' own (`REPORTED`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from flhe.errors import ConfigError
from flhe_lab.advise.prices import GB, Prices, cost
from flhe_lab.advise.round_model import Breakdown
from flhe_lab.advise.wan import SERVER, Wan


@dataclass(frozen=True, slots=True)
class Projection:
    """What training to the end takes.

    Parameters
    ----------
    hours : float
    traffic_gb : float
        One client's, up and down, in GB of 2**30 bytes: what FLASHE's Table 4 tells.
    instance_usd, network_usd : float
        Of all clients and the server.
    """

    hours: float
    traffic_gb: float
    instance_usd: float
    network_usd: float

    @property
    def total_usd(self) -> float:
        """Both."""
        return self.instance_usd + self.network_usd


def project(
    breakdown: Breakdown, rounds: float, prices: Prices, wan: Wan, cohort: int
) -> Projection:
    """Multiply one round.

    Parameters
    ----------
    breakdown : Breakdown
        Of a surviving client, whose bytes stand for everybody's. Those that drop out are billed as
        well: their machines run, and more traffic than that there cannot be.
    rounds : float
        Epochs to convergence, times rounds an epoch.
    prices : Prices
        Where they tell nothing of a site's traffic, the network's do.
    wan : Wan
        Whose sites the clients are at.
    cohort : int
        Clients.
    """
    if not (math.isfinite(rounds) and rounds >= 0):
        raise ConfigError(f"rounds={rounds}: must be finite and 0 or more")
    hours = rounds * breakdown.total_s / 3600
    up, down = (rounds * nbytes / GB for nbytes in (breakdown.bytes_up, breakdown.bytes_down))
    placed = Counter(site.name for site in wan.placed(cohort))
    leaving = {name: count * up for name, count in placed.items()} | {SERVER: cohort * down}
    bill = cost(prices.on(wan), hours, leaving, cohort)
    return Projection(hours, up + down, bill.instance_usd, bill.network_usd)


@dataclass(frozen=True, slots=True)
class Reported:
    """A line of a paper's table: one model trained to the end.

    Parameters
    ----------
    paper, model, mode : str
        "plain", or the scheme, as the paper calls it.
    epochs : int
        Until the record. One is a round in FLASHE, and many in the others.
    reached : float
        Accuracy in percent; a loss for models named "LSTM".
    hours, traffic_gb : float
        As the paper tells them, whatever its gigabyte is.
    usd : float, optional
        All costs; None where the paper has but a picture.
    """

    paper: str
    model: str
    mode: str
    epochs: int
    reached: float
    hours: float
    traffic_gb: float
    usd: float | None = None


def _reported() -> tuple[Reported, ...]:
    flashe = {  # Sec. 6.3: rounds and accuracy; Table 4: hours, GB, USD
        ("ResNet-20", 374, 72.0): (
            (1.91, 0.47, 17.69),
            (1.92, 0.47, 17.79),
            (2.60, 1.00, 24.16),
            (4.89, 12.05, 49.05),
            (6.44, 20.15, 66.06),
        ),
        ("GRU", 95, 57.7): (
            (0.38, 0.29, 3.58),
            (0.39, 0.29, 3.71),
            (0.78, 0.60, 7.32),
            (2.11, 7.20, 21.88),
            (3.19, 11.22, 33.15),
        ),
        ("CNN", 277, 88.4): (
            (1.02, 1.56, 9.85),
            (1.07, 1.56, 10.35),
            (3.46, 3.22, 32.86),
            (10.50, 38.84, 109.81),
            (16.13, 56.70, 167.59),
        ),
    }
    modes = ("plain", "FLASHE", "Paillier+batch", "FV+batch", "CKKS+batch")
    found = [
        Reported("FLASHE", model, mode, rounds, accuracy, *line)
        for (model, rounds, accuracy), lines in flashe.items()
        for mode, line in zip(modes, lines, strict=True)
    ]
    others = (  # BatchCrypt, Table 4; ESAFL, Table 5: epochs, accuracy or loss, hours, GB
        ("BatchCrypt", "FCN", "FATE", 40, 88.62, 122.5, 2228.3),
        ("BatchCrypt", "FCN", "BatchCrypt", 68, 88.37, 8.9, 58.7),
        ("BatchCrypt", "FCN", "plain", 40, 88.62, 3.2, 11.17),
        ("BatchCrypt", "AlexNet", "FATE", 285, 73.97, 9495.6, 16422.0),
        ("BatchCrypt", "AlexNet", "BatchCrypt", 279, 74.04, 131.3, 227.8),
        ("BatchCrypt", "AlexNet", "plain", 285, 73.97, 34.2, 11.39),
        ("BatchCrypt", "LSTM", "FATE", 20, 0.0357, 8484.4, 15347.3),
        ("BatchCrypt", "LSTM", "BatchCrypt", 23, 0.0335, 105.2, 175.9),
        ("BatchCrypt", "LSTM", "plain", 20, 0.0357, 12.3, 10.4),
        ("ESAFL", "FCN", "FATE", 40, 88.62, 122.5, 2228.3),
        ("ESAFL", "FCN", "BatchCrypt", 68, 88.37, 8.9, 58.7),
        ("ESAFL", "FCN", "ESAFL", 34, 88.79, 0.6, 28.9),
        ("ESAFL", "FCN", "plain", 36, 89.15, 0.2, 12.8),
        ("ESAFL", "AlexNet", "FATE", 285, 73.97, 9495.6, 16422.0),
        ("ESAFL", "AlexNet", "BatchCrypt", 279, 74.04, 131.3, 277.8),
        ("ESAFL", "AlexNet", "ESAFL", 255, 73.85, 10.2, 180.6),
        ("ESAFL", "AlexNet", "plain", 265, 73.35, 3.8, 119.8),
        ("ESAFL", "LSTM", "FATE", 20, 0.0357, 8484.4, 15347.3),
        ("ESAFL", "LSTM", "BatchCrypt", 23, 0.0335, 105.2, 175.9),
        ("ESAFL", "LSTM", "ESAFL", 20, 0.0351, 8.9, 139.9),
        ("ESAFL", "LSTM", "plain", 20, 0.0357, 3.3, 100.4),
    )
    return (*found, *(Reported(*line) for line in others))


REPORTED = _reported()
"""What the papers' tables say, misprints included: ESAFL's line of BatchCrypt for AlexNet has 277.8 GB,
BatchCrypt's own has 227.8."""


def reported(paper: str, model: str, mode: str) -> Reported:
    """The line of that table; ConfigError when it has none."""
    for line in REPORTED:
        if (line.paper, line.model, line.mode) == (paper, model, mode):
            return line
    have = sorted({line.mode for line in REPORTED if (line.paper, line.model) == (paper, model)})
    known = ", ".join(have) or "nothing"
    raise ConfigError(f"no line {mode!r} for {model!r} in {paper!r}: have {known}")

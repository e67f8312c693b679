"""Flower's own FedAvg, with a report after each round: the plaintext baseline.

The arithmetic, the sampling and the records are FedAvg's; this only counts messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Result

from flhe.errors import QuorumError
from flhe.strategies.overhead import ADD
from flhe.strategies.report import MeteredGrid, OnRound, RoundReport
from flhe.training.optimizer import Optimizer
from flhe.wire.printable import printable


class MeteredFedAvg(FedAvg):
    """FedAvg that passes a RoundReport to `on_round` after each round's federated evaluation.

    A round without any update is an error here: FedAvg alone would log it, keep the old model and
    report success.

    Parameters
    ----------
    on_round : callable, optional
        Receives each RoundReport.
    **fedavg
        FedAvg's own arguments.
    """

    def __init__(self, *, on_round: OnRound | None = None, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        self._on_round = on_round
        self._meter: MeteredGrid | None = None
        self._started_at = 0.0
        self._survivors = 0

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run FedAvg's rounds over a metered `grid`."""
        self._meter = MeteredGrid(grid)
        return super().start(self._meter, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start the round's clock, then do as FedAvg does."""
        self._started_at = time.monotonic()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the survivors, then do as FedAvg does."""
        replies = list(replies)
        self._survivors = _delivered(replies)
        if self.fraction_train > 0 and not self._survivors:
            raise QuorumError(_nobody("trained", server_round, replies))
        with nullcontext() if self._meter is None else self._meter.meter.doing(ADD):
            return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Do as FedAvg does, then report the round."""
        replies = list(replies)
        if self.fraction_evaluate > 0 and not _delivered(replies):
            raise QuorumError(_nobody("evaluated", server_round, replies))
        metrics = super().aggregate_evaluate(server_round, replies)
        if self._on_round is not None and self._meter is not None:
            report = RoundReport.of(
                server_round,
                self._meter.meter.take(),
                crypto_s=0.0,
                round_s=time.monotonic() - self._started_at,
                survivors=self._survivors,
            )
            self._on_round(report.told(metrics))
        return metrics


_RULES: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}


def metered(optimizer: Optimizer, **strategy: Any) -> MeteredFedAvg:
    """Return Flower's own strategy for `optimizer`, metered.

    Parameters
    ----------
    optimizer : Optimizer
        Step with the mean update, and its parameters.
    **strategy
        Arguments of `MeteredFedAvg`.
    """
    rule = _RULES[optimizer.name]
    if rule is FedAvg:
        return MeteredFedAvg(**strategy)
    kind: Any = type(f"Metered{rule.__name__}", (MeteredFedAvg, rule), {})
    own = {name: getattr(optimizer, name) for name in ("eta", "beta_1", "beta_2", "tau")}
    if rule is FedAvgM:
        own = {"server_learning_rate": optimizer.eta, "server_momentum": optimizer.momentum}
    found: MeteredFedAvg = kind(
        **{name: value for name, value in own.items() if value is not None}, **strategy
    )
    return found


def _delivered(replies: list[Message]) -> int:
    return sum(not reply.has_error() for reply in replies)


def _nobody(verb: str, server_round: int, replies: list[Message]) -> str:
    """Return why a round has no result, with the first node's reason."""
    reasons = [reply.error.reason for reply in replies if reply.has_error()]
    if not reasons:
        return f"round {server_round}: no node {verb} within the round's timeout; raise it"
    first = printable(reasons[0] or "")
    return f"round {server_round}: no node {verb}, all {len(reasons)} failed: {first}"

"""Survival: Kaplan-Meier curves and the log-rank test, from one sum of events by time.

Time is whole (days, months), so the curves equal those of the pooled table.

Source: Kaplan, Meier, "Nonparametric estimation from incomplete observations" (JASA 1958); Greenwood's
variance; Mantel, "Evaluation of survival data" (1966), in the form for several groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.analytics.schema import Choice, Schema, Table, Whole
from flhe.analytics.statistics import Statistic, Sums, chi_square_tail, rows_of
from flhe.errors import ConfigError


class Survival(NamedTuple):
    """Survival curves of one or more groups.

    `times` has shape (times,), the others (groups, times): rows at risk just before each time,
    events at it, the surviving share, and its standard error (Greenwood).
    """

    groups: tuple[str | int, ...]
    times: NDArray[np.int64]
    at_risk: NDArray[np.int64]
    events: NDArray[np.int64]
    survival: NDArray[np.float64]
    error: NDArray[np.float64]

    @property
    def medians(self) -> list[float]:
        """Return each group's first time that at most half survive; NaN if more survive to the end."""
        # The product of shares that is exactly a half may be a float just above it.
        half = self.survival <= 0.5 + 1e-9
        return [float(self.times[np.argmax(at)]) if np.any(at) else math.nan for at in half]

    @property
    def log_rank(self) -> tuple[float, int, float]:
        """Return statistic, degrees of freedom, p-value of the test that all groups have one curve.

        A group with nobody at risk at any event does not count. Statistic and p-value are NaN with
        fewer than two others, and if all of them have their event at one time: nothing varies then.

        Raises ConfigError: there is only one group.
        """
        if len(self.groups) < 2:
            raise ConfigError("log_rank compares groups: KaplanMeier(..., by=COLUMN)")
        risk, died = self.at_risk.astype(np.float64), self.events.astype(np.float64)
        everyone, deaths = risk.sum(0), died.sum(0)
        at = (deaths > 0) & (everyone > 0)
        everyone, deaths = everyone[at], deaths[at]
        some = (risk[:, at] * deaths / everyone).sum(1) > 0
        freedom = max(int(some.sum()) - 1, 0)
        if not freedom:
            return math.nan, freedom, math.nan
        risk, died = risk[some][:, at], died[some][:, at]
        excess = (died - risk * deaths / everyone).sum(1)
        left = np.where(everyone > 1, (everyone - deaths) / np.maximum(everyone - 1, 1), 0.0)
        share = risk / everyone
        weight = deaths * left
        if not np.any(weight):
            return math.nan, freedom, math.nan
        covariance = np.diag((share * weight).sum(1)) - (share * weight) @ share.T
        inverse = np.linalg.pinv(covariance[:-1, :-1])  # the excesses of all groups sum to 0
        statistic = float(excess[:-1] @ inverse @ excess[:-1])
        return statistic, freedom, chi_square_tail(statistic, freedom)


@dataclass(frozen=True)
class KaplanMeier(Statistic):
    """Survival by time, of all rows or of the groups of a column of choices.

    `duration` is a column of whole numbers. `event` has two choices: first censored (the row was
    lost from sight), second the event.
    """

    name: ClassVar[str] = "kaplan-meier"

    duration: str
    event: str
    by: str = ""

    def check(self, schema: Schema) -> None:
        """Require such columns."""
        schema.column(self.duration, Whole)
        if schema.column(self.event, Choice).count != 2:
            raise ConfigError(f"column {self.event!r} must have two choices: censored and happened")
        if self.by:
            schema.column(self.by, Choice)

    def answer(self, schema: Schema, table: Table) -> dict[str, NDArray[np.int64]]:
        """Return "ended", shape (groups, 2, times): rows that end then, censored or by the event."""
        times = schema.column(self.duration, Whole).count
        ended = np.zeros((len(self._groups(schema)), 2, times), np.int64)
        group = schema.take(table, self.by) if self.by else np.zeros(rows_of(table), np.int64)
        rows_of(table)
        np.add.at(
            ended, (group, schema.take(table, self.event), schema.take(table, self.duration)), 1
        )
        return {"ended": ended}

    def result(self, schema: Schema, sums: Sums) -> Survival:
        """Return the curves at all times at which a row ends."""
        first = schema.column(self.duration, Whole).low
        ended = np.asarray(sums["ended"], np.int64)
        at_risk = ended.sum(1)[:, ::-1].cumsum(1)[:, ::-1]
        events = ended[:, 1]
        used = ended.sum((0, 1)) > 0
        at_risk, events = at_risk[:, used], events[:, used]
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.where(at_risk > 0, 1 - events / at_risk, 1.0)
            lost = np.where(events < at_risk, events / (at_risk * (at_risk - events)), 0.0)
        survival = left.cumprod(1)
        error = survival * np.sqrt(np.nan_to_num(lost).cumsum(1))
        times = first + np.flatnonzero(used)
        return Survival(self._groups(schema), times, at_risk, events, survival, error)

    def _groups(self, schema: Schema) -> tuple[str | int, ...]:
        return schema.column(self.by, Choice).values if self.by else ("all",)

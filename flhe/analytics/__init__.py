"""Statistics over patients of many sites, each from one or a few secure sums.

    SCHEMA = Schema(age=Real(0, 120), stage=Choice("I", "II"), days=Whole(0, 3650), died=Choice(0, 1))

    app = query_app(answers(SCHEMA, load))                                    # client_app.py

    with SecureSum(grid, scheme=Sash()) as secure:                            # server_app.py
        ask(secure, SCHEMA, Mean("age")).mean
        ask(secure, SCHEMA, KaplanMeier("days", "died", by="stage")).survival

Every number is an exact integer before it is encrypted, so the result equals that of the pooled
table to the last bit.
"""

from flhe.analytics.ask import answers, ask, quantiles
from flhe.analytics.schema import Choice, Real, Schema, Whole
from flhe.analytics.statistics import (
    Below,
    Contingency,
    Count,
    Covariance,
    Histogram,
    Mean,
    Statistic,
    Variance,
)
from flhe.analytics.survival import KaplanMeier

__all__ = [
    "Below",
    "Choice",
    "Contingency",
    "Count",
    "Covariance",
    "Histogram",
    "KaplanMeier",
    "Mean",
    "Real",
    "Schema",
    "Statistic",
    "Variance",
    "Whole",
    "answers",
    "ask",
    "quantiles",
]

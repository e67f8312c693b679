"""What every site and the analyst have in common: the schema. And patients, who are made up."""

from __future__ import annotations

import numpy as np

from flhe.analytics import (
    Choice,
    Contingency,
    Count,
    Covariance,
    Histogram,
    KaplanMeier,
    Mean,
    Real,
    Schema,
    Variance,
    Whole,
)
from flhe.analytics.schema import Table

SCHEMA = Schema(
    age=Real(18, 100),
    pressure=Real(60, 260),
    stage=Choice("I", "II", "III"),
    treated=Choice("no", "yes"),
    days=Whole(0, 1095),
    died=Choice(0, 1),
)
CURVES = KaplanMeier("days", "died", by="treated")
ASKED = {
    "patients": Count(),
    "age": Mean("age"),
    "blood pressure": Variance("pressure"),
    "age and blood pressure": Covariance(("age", "pressure")),
    "ages": Histogram("age", (18, 30, 40, 50, 60, 70, 80, 90, 100)),
    "stage and treatment": Contingency("stage", "treated"),
    "survival": CURVES,
}


def patients(hospital: int) -> Table:
    """The patients of one hospital; hospitals differ in how many there are, how old and how ill."""
    draw = np.random.default_rng([2024, hospital])
    count = 150 + 130 * hospital
    age = np.clip(draw.normal(52 + 4 * hospital, 14, count), 18, 100)
    pressure = np.clip(90 + 0.8 * age + draw.normal(0, 15, count), 60, 260)
    stage = draw.choice(3, count, p=[0.5, 0.3, 0.2] if hospital % 2 else [0.3, 0.3, 0.4])
    treated = draw.integers(0, 2, count)
    hazard = 4e-4 * np.exp(0.8 * stage + 0.03 * (age - 60) - 0.7 * treated)
    died, lost = draw.exponential(1 / hazard), draw.uniform(200, 1500, count)
    return {
        "age": age,
        "pressure": pressure,
        "stage": np.array(["I", "II", "III"])[stage],
        "treated": np.array(["no", "yes"])[treated],
        "days": np.minimum(np.minimum(died, lost), 1095).astype(np.int64),
        "died": (died <= np.minimum(lost, 1095)).astype(np.int64),
    }

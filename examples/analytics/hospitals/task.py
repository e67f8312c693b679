"""hospitals: the schema and the statistics that all agree on, and patients who are made up."""

import numpy as np

from flhe import analytics as of
from flhe.analytics.schema import Table

SCHEMA = of.Schema(
    age=of.Real(18, 100),
    pressure=of.Real(60, 260),
    stage=of.Choice("I", "II", "III"),
    treated=of.Choice("no", "yes"),
    days=of.Whole(0, 1095),
    died=of.Choice(0, 1),
)
ASKED = {
    "patients": (of.Count(), ""),
    "mean age": (of.Mean("age"), "mean"),
    "deviation of pressure": (of.Variance("pressure"), "deviation"),
    "correlation": (of.Covariance(("age", "pressure")), "correlation"),
    "patients by age": (of.Histogram("age", tuple(range(20, 101, 10))), ""),
    "by stage and treatment": (of.Contingency("stage", "treated"), "counts"),
    "survival": (of.KaplanMeier("days", "died", by="treated"), "survival"),
}
"""Name -> a statistic, and the field of its result that is printed."""


def patients(hospital: int) -> Table:
    """Return the patients of one hospital; hospitals differ in number, age and illness."""
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

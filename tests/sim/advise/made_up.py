"""A calibration of a machine that is as fast as a test says."""

from __future__ import annotations

from collections.abc import Callable

from flhe_lab.advise import agreement_cost
from flhe_lab.advise.agreement_cost import Agreement
from flhe_lab.advise.calibration import POINTS, Calibration
from flhe_lab.advise.cost_model import Point
from flhe_lab.bench.contender import PHASES

GROUPS = agreement_cost.GROUPS


def machine(seconds: Callable[[Point, str], float]) -> Calibration:
    return Calibration(
        {point.key: {phase: seconds(point, phase) for phase in PHASES} for point in POINTS},
        POINTS,
        {
            (n, length): Agreement(1e-7 * n * length, 1e-5 * n, 4e-5 * n, 8e-5 * n)
            for n in GROUPS
            for length in agreement_cost.ELEMENTS
        },
        6e-10,
    )

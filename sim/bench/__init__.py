"""`flhe bench`: what encryption costs, beside what nobody can beat and what a user would pick instead.

Who takes part is a `Contender`: a name, what it does in each phase, and what is known of it. `measure`
times any number of them, in turns.
"""

from flhe.sim.bench.contender import (
    EXAMPLES,
    PHASES,
    SLOT,
    TOLERANCE,
    Contender,
    Kind,
    Laps,
    Setting,
    Vector,
    Work,
    worst,
)
from flhe.sim.bench.machine import machine, pinned, quiet
from flhe.sim.bench.measure import Measured, Progress, Times, measure

__all__ = [
    "EXAMPLES",
    "PHASES",
    "SLOT",
    "TOLERANCE",
    "Contender",
    "Kind",
    "Laps",
    "Measured",
    "Progress",
    "Setting",
    "Times",
    "Vector",
    "Work",
    "machine",
    "measure",
    "pinned",
    "quiet",
    "worst",
]

"""Secure aggregation, timed: one client and the server, as clients grow and drop out.

A contender has two phases: "client", all that one client does in a round but training and quantizing,
and "server", what comes between the last answer and the sum. Nobody waits for a network. What must be
made ready beforehand is not in the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from flhe_lab.bench.contender import MANY, Contender, Laps, Setting
from flhe_lab.bench.members import Pairwise, SashMembers, SashNeighbours
from flhe_lab.bench.turns import Measured, Progress, measure

DEGREE = 100
"""k: neighbours of a client under SecAgg+ and SASH+, as in the paper."""

WHOLE = 50
"""Clients up to which Flower's round is run whole, not projected."""


class Sides(Protocol):
    """One client and one server of one setting."""

    @property
    def projected(self) -> bool:
        """Whether the server's seconds are added up from those of its parts."""

    def client(self) -> Laps:
        """Seconds of one client, a whole round."""

    def server(self) -> Laps:
        """Seconds from the last answer to the sum; raises FlheError if it is not the sum."""


@dataclass(frozen=True, slots=True)
class Maker:
    """How to make one that takes part."""

    name: str  # In the figure
    make: Callable[[Setting], Sides | None]  # Setting -> its sides, or None where it has no point
    max_repeats: int = MANY  # Repeats beyond which waiting for it teaches nothing

    def contender(self, sides: Sides) -> Contender:
        """Both sides, in turn."""
        work = {"client": sides.client, "server": sides.server}
        projected = ("server",) if sides.projected else ()
        return Contender(self.name, work, max_repeats=self.max_repeats, projected=projected)


def _flowers(setting: Setting, *, whole: int) -> Sides:
    """Flower's SecAgg+ on DEGREE neighbours: run up to `whole` clients, projected from parts beyond."""
    from flhe_lab.bench.flower_secagg import FlowerSecAgg, Projection

    shares = min(DEGREE + 1, setting.cohort)
    return (FlowerSecAgg if setting.cohort <= whole else Projection)(setting, shares)


def _sparse(make: Callable[[Setting, int], Sides]) -> Callable[[Setting], Sides | None]:
    """Those on a graph have no point where all would be neighbours."""
    return lambda setting: make(setting, DEGREE) if setting.cohort > DEGREE + 1 else None


SASH, SASH_PLUS = Maker("SASH", SashMembers), Maker("SASH+", _sparse(SashNeighbours))
SECAGG = Maker("SecAgg", lambda setting: Pairwise(setting, None))
SECAGG_PLUS = Maker("SecAgg+", _sparse(Pairwise))
FLOWERS = Maker("SecAgg+ of Flower", partial(_flowers, whole=WHOLE), max_repeats=1)
FLOWERS_PARTS = Maker(FLOWERS.name, partial(_flowers, whole=0), max_repeats=1)


def timed(
    setting: Setting,
    makers: Sequence[Maker],
    repeats: int,
    progress: Progress | None = None,
) -> dict[str, Measured]:
    """Time everybody in one setting, in turns; by name. Who has no point here is left out.

    Raises ConfigError: no repeats. FlheError: a sum that is not the sum.
    """
    taking = []
    for maker in makers:
        if progress is not None:
            progress(0, repeats + 1, f"{maker.name}, {setting.cohort} clients: making it ready")
        sides = maker.make(setting)
        if sides is not None:
            taking.append(maker.contender(sides))
    return measure(taking, repeats, progress)

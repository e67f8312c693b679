"""Secure aggregation, timed: one client and the server, as clients grow and drop out.

A contender has two phases: "client", all that one client does in a round but training and quantizing,
and "server", what comes between the last answer and the sum. Nobody waits for a network. What must be
made ready beforehand is not in the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flhe_lab.bench.contender import MANY, Contender, Setting
from flhe_lab.bench.members import Pairwise, SashMembers, SashNeighbours
from flhe_lab.bench.turns import Measured, Progress, measure, silent

DEGREE = 100
"""k: neighbours of a client under SecAgg+ and SASH+, as in the paper."""

WHOLE = 50
"""Clients up to which Flower's round is run: its server takes 13 s there, and minutes with 500."""

Make = Callable[[Setting], Any]
"""Setting -> both sides, whose `client` and `server` give seconds; None where there is no point."""


def _flowers(setting: Setting) -> Any:
    from flhe_lab.bench.flower_secagg import FlowerSecAgg

    return FlowerSecAgg(setting) if setting.cohort <= WHOLE else None


def _sparse(make: Callable[[Setting, int], Any]) -> Make:
    """Those on a graph have no point where all would be neighbours."""
    return lambda setting: make(setting, DEGREE) if setting.cohort > DEGREE + 1 else None


SASH, SASH_PLUS, SECAGG, SECAGG_PLUS = "SASH", "SASH+", "SecAgg", "SecAgg+"
FLOWERS = "SecAgg+ of Flower"
MAKES: Mapping[str, Make] = {
    SASH: SashMembers,
    SASH_PLUS: _sparse(SashNeighbours),
    SECAGG: lambda setting: Pairwise(setting, None),
    SECAGG_PLUS: _sparse(Pairwise),
    FLOWERS: _flowers,
}


def contender(name: str, sides: Any) -> Contender:
    """Both sides, in turn; Flower's takes too long to be repeated."""
    work = {"client": sides.client, "server": sides.server}
    return Contender(name, work, max_repeats=1 if name == FLOWERS else MANY)


def timed(
    setting: Setting, makes: Mapping[str, Make], repeats: int, progress: Progress = silent
) -> dict[str, Measured]:
    """Time everybody in one setting, in turns; by name. Who has no point here is left out.

    Raises ConfigError: no repeats. FlheError: a sum that is not the sum.
    """
    taking = []
    for name, make in makes.items():
        progress(0, repeats + 1, f"{name}, {setting.cohort} clients: making it ready")
        if sides := make(setting):
            taking.append(contender(name, sides))
    return measure(taking, repeats, progress)

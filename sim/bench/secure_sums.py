"""Secure aggregation, timed: one client and the server, as clients grow and drop out.

A contender has two phases: "client", all that one client does in a round but training and quantizing,
and "server", what comes between the last answer and the sum. Nobody waits for a network. What must be
made ready beforehand is not in the seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.schemes.sealed import Slot
from flhe_lab.bench.contender import MANY, Contender, Laps
from flhe_lab.bench.turns import Measured, Progress, measure

DEGREE = 100
"""k: neighbours of a client under SecAgg+ and SASH+, as in the paper."""

BITS = 16
"""Of one value, as in the paper."""

WHOLE = 50
"""Clients up to which Flower's round is run whole, not projected."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a figure.

    Parameters
    ----------
    clients : int
        N, at least 3.
    values : int
        M, values of an update.
    dropout : float
        Share of the clients that agree on keys and upload nothing.
    """

    clients: int
    values: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.clients < 3 or self.values < 1 or not 0 <= self.dropouts <= self.clients - 2:
            raise ConfigError(f"{self}: at least 3 clients and 1 value; 2 clients must remain")

    @property
    def dropouts(self) -> int:
        """Clients that drop out; `dropout` in whole clients."""
        return round(self.clients * self.dropout)

    @property
    def gone(self) -> frozenset[int]:
        """Ranks of those, spread evenly, never rank 0."""
        step = self.clients / max(self.dropouts, 1)
        return frozenset(math.ceil((i + 1) * step) - 1 for i in range(self.dropouts))

    @property
    def senders(self) -> tuple[int, ...]:
        """Ranks of the others."""
        return tuple(r for r in range(self.clients) if r not in self.gone)

    def update(self, rank: int) -> NDArray[np.int32]:
        """A client's encoded update, shape (values,): always the same, over all of BITS bits."""
        rng = np.random.default_rng(rank)  # test data; keys and masks never come from here
        bound = (1 << (BITS - 1)) - 1
        return rng.integers(-bound, bound + 1, self.values, dtype=np.int32)


class Members:
    """A group that is made up: its identities by rank, and the epoch of rank 0.

    Parameters
    ----------
    setting : Setting
        How many, and what they upload.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, size = setting, setting.clients
        # Keys of members who are made up; they guard nothing.
        seeds = [(i + 1).to_bytes(32, "big") for i in range(size)]
        self._identities = sorted(map(Identity, seeds), key=lambda each: each.public)
        members = tuple(Member(f"{i}", each.public) for i, each in enumerate(self._identities))
        roster = Roster(members, (size - 1) // 3, 2, ("*",))
        self._epoch = Epoch(
            id=bytes(range(16)),
            number=1,
            run_id=1,
            roster=roster,
            members=roster.publics,
            rank=0,
            group_key=bytes(32),
            pair_keys=(b"", *seeds[:-1]),
        )
        self._slot = Slot(1, roster.hash, self._epoch.id, 1, 0, bytes(32), bytes(32))


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
    """How to make one that takes part.

    Parameters
    ----------
    name : str
        In the figure.
    make : callable
        Setting -> its sides, or None where it has no point.
    max_repeats : int
        Repeats beyond which waiting for it teaches nothing.
    serves : bool
        Whether its server takes part.
    """

    name: str
    make: Callable[[Setting], Sides | None]
    max_repeats: int = MANY
    serves: bool = True

    def contender(self, sides: Sides) -> Contender:
        """Both sides, in turn."""
        work = {"client": sides.client, "server": sides.server}
        projected = ("server",) if sides.projected else ()
        phases = work if self.serves else {"client": sides.client}
        return Contender(self.name, phases, max_repeats=self.max_repeats, projected=projected)


def _secagg(setting: Setting) -> Sides:
    from flhe_lab.bench.pairwise import Pairwise

    return Pairwise(setting, None)


def _secagg_plus(setting: Setting) -> Sides | None:
    from flhe_lab.bench.pairwise import Pairwise

    return Pairwise(setting, DEGREE) if setting.clients > DEGREE + 1 else None


def _sash(setting: Setting) -> Sides:
    from flhe_lab.bench.sash_members import SashMembers

    return SashMembers(setting)


def _sash_plus(setting: Setting) -> Sides | None:
    from flhe_lab.bench.pairwise import SashNeighbours

    return SashNeighbours(setting, DEGREE) if setting.clients > DEGREE + 1 else None


def flowers(setting: Setting, shares: int, threshold: int, *, whole: bool) -> Sides:
    """Flower's SecAgg+ among `shares` clients each, run whole or projected from its parts."""
    from flhe_lab.bench.flower_parts import Round
    from flhe_lab.bench.flower_secagg import FlowerSecAgg, Projection

    asked = Round(setting.clients, setting.values, shares, threshold, setting.dropouts)
    return FlowerSecAgg(asked) if whole else Projection(asked)


def _flower(setting: Setting) -> Sides:
    """On DEGREE neighbours; whole while all are neighbours and few."""
    shares = min(DEGREE + 1, setting.clients)
    return flowers(setting, shares, shares // 2 + 1, whole=setting.clients <= WHOLE)


def _flower_parts(setting: Setting) -> Sides:
    """By its parts, also where it could be run whole."""
    shares = min(DEGREE + 1, setting.clients)
    return flowers(setting, shares, shares // 2 + 1, whole=False)


SASH, SASH_PLUS = Maker("SASH", _sash), Maker("SASH+", _sash_plus)
SECAGG, SECAGG_PLUS = Maker("SecAgg", _secagg), Maker("SecAgg+", _secagg_plus)
FLOWERS = Maker("SecAgg+ of Flower", _flower, max_repeats=1)
FLOWERS_PARTS = Maker(FLOWERS.name, _flower_parts, max_repeats=1)


def timed(
    setting: Setting,
    makers: Sequence[Maker],
    repeats: int,
    progress: Progress | None = None,
) -> dict[str, Measured]:
    """Time everybody in one setting, in turns; by name. Who has no point here is left out.

    Raises
    ------
    ConfigError
        No repeats.
    FlheError
        A sum that is not the sum.
    """
    taking = []
    for maker in makers:
        if progress is not None:
            progress(0, repeats + 1, f"{maker.name}, {setting.clients} clients: making it ready")
        sides = maker.make(setting)
        if sides is not None:
            taking.append(maker.contender(sides))
    return measure(taking, repeats, progress)

"""Graph: who masks with whom, and who holds whose shares.

Complete: everybody with everybody, as in SecAgg. Regular: everybody with `degree` others, as in
SecAgg+, on a Harary graph (members on a circle, each joined to the degree / 2 on either side, and to
the one opposite where the degree is odd) whose places are dealt out by a permutation. The permutation
comes from a public seed that no single party chose, such as the epoch's id, after the members are
fixed. Then the neighbours of one member are a uniformly random set of the others, and what can go
wrong has an exact (hypergeometric) probability, which `check` holds against 2**-40.

Two limits. The bounds are for colluders and dropouts that do not depend on the graph. And the member
whose message comes last can try several and so pick among seeds: g tries multiply the odds by at most
g.

Source: Bell et al., CCS 2020, Sec. 3.1 and Definition 3.2 (good graphs); Harary, 1962.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.derive import hkdf

MAX_MEMBERS = 1024

LIMIT = Fraction(1, 1 << 40)
"""Odds that we call never."""


@dataclass(frozen=True, slots=True)
class Odds:
    """Upper bounds on what can go wrong for somebody; exact fractions.

    Parameters
    ----------
    colluders : Fraction
        Some honest member's neighbourhood holds too many colluders: its secrets are at risk.
    survivors : Fraction
        Some neighbourhood has fewer survivors than the threshold: the round is lost.
    parts : Fraction
        Honest survivors fall apart into groups that do not mask with each other: the server learns
        the sum of each group.
    """

    colluders: Fraction
    survivors: Fraction
    parts: Fraction

    @property
    def total(self) -> Fraction:
        """Any of the three; at most 1."""
        return min(self.colluders + self.survivors + self.parts, Fraction(1))


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected graph on ranks 0 to members - 1, without loops, every degree the same.

    Parameters
    ----------
    members : int
        N, 3 to 1024.
    degree : int
        k, neighbours of each, 2 to N - 1; even, or N is. N - 1 is the complete graph.
    seed : bytes
        Public, 16 bytes or more; not needed for the complete graph.
    """

    members: int
    degree: int
    seed: bytes = b""
    _circle: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _place: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.members) is not int or not 3 <= self.members <= MAX_MEMBERS:
            raise ConfigError(f"Graph(members={self.members}): 3 to {MAX_MEMBERS}")
        if type(self.degree) is not int or not 2 <= self.degree < self.members:
            raise ConfigError(f"Graph(degree={self.degree}): 2 to {self.members - 1}")
        if self.degree % 2 and self.members % 2:
            raise ConfigError(
                f"Graph(members={self.members}, degree={self.degree}): no graph has an odd number of "
                f"members of an odd degree; take degree {self.degree + 1}"
            )
        if not self.complete and len(self.seed) < 16:
            raise ConfigError("Graph: a seed of 16 bytes is needed, such as the epoch's id")
        circle = tuple(range(self.members)) if self.complete else self._dealt()
        place = [0] * self.members
        for at, rank in enumerate(circle):
            place[rank] = at
        object.__setattr__(self, "_circle", circle)
        object.__setattr__(self, "_place", tuple(place))

    @classmethod
    def full(cls, members: int) -> Graph:
        """The complete graph."""
        return cls(members, members - 1)

    @property
    def complete(self) -> bool:
        """Whether everybody masks with everybody."""
        return self.degree == self.members - 1

    @property
    def holders(self) -> int:
        """Who holds shares of one member's secrets, itself included: k + 1."""
        return self.degree + 1

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Ranks that `rank` masks with, ascending. ProtocolError for one that is no member's."""
        return tuple(r for r in self.around(rank) if r != rank)

    def around(self, rank: int) -> tuple[int, ...]:
        """`rank` and its neighbours, ascending; a holder's place in it is that of its shares."""
        if type(rank) is not int or not 0 <= rank < self.members:
            raise ProtocolError(f"Graph: there is no rank {rank} among {self.members} members")
        if self.complete:
            return self._circle
        at, half = self._place[rank], self.degree // 2
        found = {self._circle[(at + step) % self.members] for step in range(-half, half + 1)}
        if self.degree % 2:
            found.add(self._circle[(at + self.members // 2) % self.members])
        return tuple(sorted(found))

    def odds(
        self, threshold: int, colluders: int, dropouts: int, *, honest_server: bool = False
    ) -> Odds:
        """What can go wrong at this degree, whatever the seed.

        Parameters
        ----------
        threshold : int
            t, shares that give a secret.
        colluders, dropouts : int
            Members of each kind, chosen without knowing the graph.
        honest_server : bool
            A neighbourhood is at risk from t colluders on. Otherwise from 2 t - k - 1 on: then the
            server could show its members two sets, and have t shares of both secrets of one.
        """
        return _odds(self.members, self.degree, threshold, colluders, dropouts, honest_server)

    def check(
        self, threshold: int, colluders: int, dropouts: int, *, honest_server: bool = False
    ) -> Odds:
        """Refuse a graph on which more goes wrong than once in 2**40 rounds; returns the odds.

        Parameters as for `odds`. Raises ConfigError that names the odds and, if there is one, a
        degree and threshold that would do.
        """
        found = self.odds(threshold, colluders, dropouts, honest_server=honest_server)
        if found.total <= LIMIT:
            return found
        fits = least(self.members, colluders, dropouts, honest_server=honest_server)
        raise ConfigError(
            f"a graph of {self.members} members and degree {self.degree} with threshold {threshold}, "
            f"{colluders} colluders and {dropouts} dropouts: too many colluders in a neighbourhood "
            f"with odds {_power(found.colluders)}, too few survivors {_power(found.survivors)}, in "
            f"parts {_power(found.parts)}; together at most {_power(LIMIT)} will do"
            + (f": take degree {fits[0]}, threshold {fits[1]}" if fits else ", at no degree here")
        )

    def _dealt(self) -> tuple[int, ...]:
        """Ranks in the order of their places: a uniform shuffle (Fisher-Yates)."""
        from flhe.math.permutation import uniform
        from flhe.math.prg import AesCtr

        key = hkdf(self.seed, "pairwise-graph", self.members, self.degree)
        # Stream 0: safe because the key is derived for this graph alone, and hides nothing.
        bounds = np.arange(1, self.members + 1, dtype=np.uint64)
        picks = uniform(AesCtr().stream(key, 0), bounds).tolist()
        ranks = list(range(self.members))
        for last in range(self.members - 1, 0, -1):
            ranks[last], ranks[picks[last]] = ranks[picks[last]], ranks[last]
        return tuple(ranks)


def least(
    members: int, colluders: int, dropouts: int, *, honest_server: bool = False
) -> tuple[int, int] | None:
    """The smallest degree that does, and its best threshold; None where not even the complete one.

    Found by bisection over even degrees, as if more neighbours were never worse, and then checked.
    """

    def fit(degree: int) -> int | None:
        thresholds = range(2, degree + 2)
        odds = (_odds(members, degree, t, colluders, dropouts, honest_server) for t in thresholds)
        total, threshold = min((o.total, t) for o, t in zip(odds, thresholds, strict=True))
        return threshold if total <= LIMIT else None

    low, high, best = 1, (members - 1) // 2, None
    while low <= high:
        middle = (low + high) // 2
        threshold = fit(2 * middle)
        if threshold is None:
            low = middle + 1
        else:
            best, high = (2 * middle, threshold), middle - 1
    if best is None and (threshold := fit(members - 1)) is not None:
        best = members - 1, threshold
    return best


def _odds(
    members: int, degree: int, threshold: int, colluders: int, dropouts: int, honest_server: bool
) -> Odds:
    if not 1 <= threshold <= degree + 1:
        raise ConfigError(f"Graph: threshold {threshold} of {degree + 1} holders cannot work")
    for name, count in (("colluders", colluders), ("dropouts", dropouts)):
        if type(count) is not int or not 0 <= count < members:
            raise ConfigError(f"Graph: {name}={count}: 0 to {members - 1}")
    others = members - 1
    risk = threshold if honest_server else max(2 * threshold - degree - 1, 0)
    caught = (members - colluders) * tail(others, colluders, degree, risk)
    # Who stays holds a share of its own; who left has only its neighbours.
    lost = (members - dropouts) * tail(others, dropouts, degree, degree + 2 - threshold)
    if dropouts:
        lost += dropouts * tail(others, dropouts - 1, degree, degree + 1 - threshold)
    return Odds(
        min(caught, Fraction(1)),
        min(lost, Fraction(1)),
        parts(members, degree, colluders + dropouts),
    )


@cache
def tail(population: int, marked: int, draws: int, least_marked: int) -> Fraction:
    """P[X >= least_marked] for X marked ones among `draws` without replacement, exactly."""
    low, high = max(least_marked, draws + marked - population, 0), min(draws, marked)
    ways = sum(
        math.comb(marked, x) * math.comb(population - marked, draws - x)
        for x in range(low, high + 1)
    )
    return Fraction(ways, math.comb(population, draws))


def arcs(members: int, degree: int, threshold: int, colluders: int) -> Fraction:
    """Odds that a server can cut the circle into two parts that are both opened; at most 1.

    It knows the graph, and leaves out of the sum the honest members of two arcs of degree // 2
    places. Who lies beside an arc then finds t of its neighbourhood in the set only if enough
    colluders lie in it. The counts in two arcs are negatively associated, so both are as likely as
    twice one at most.
    """
    if degree == members - 1:
        return Fraction(0)
    half = degree // 2
    need = threshold - 1 - half - degree % 2
    if need <= 0:
        return Fraction(1)
    one = tail(members, colluders, half, need)
    return min(Fraction(members * (members - 1), 2) * one * one, Fraction(1))


def parts(members: int, degree: int, away: int) -> Fraction:
    """Odds that the rest falls apart: only where degree // 2 members in a row are away can it."""
    if degree == members - 1:
        return Fraction(0)
    run = degree // 2
    if away < run:
        return Fraction(0)
    away = min(away, members)
    return min(Fraction(members * math.comb(away, run), math.comb(members, run)), Fraction(1))


def _power(odds: Fraction) -> str:
    """A probability as a power of two, rounded up."""
    if odds == 0:
        return "0"
    bits = odds.denominator.bit_length() - odds.numerator.bit_length()
    while bits > 0 and odds > Fraction(1, 1 << bits):
        bits -= 1
    return f"2^-{max(bits, 0)}"

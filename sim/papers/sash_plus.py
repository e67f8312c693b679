"""SASH+: how many neighbours, shares and survivors withstand how many colluders.

Members of a large group add up the seeds of their SASH masks, 16 kB each, among a few neighbours
(`flhe_lab.variants.secagg`). These bounds are for a graph dealt out by a hash of all contributions.

Source: SASH, Sec. 4.1.2 (SASH+); Bell et al., CCS 2020.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

LIMIT = Fraction(1, 1 << 80)
"""Odds that we call never, graph by graph. Who contributes last to an epoch may try many graphs:
2**40 of them still leave odds of 2**-40."""


@functools.cache
def bounds_of(members: int, degree: int, colluders: int) -> tuple[int, int] | None:
    """The least (threshold, min_set) that `colluders` in the whole group do not defeat; None for none.

    The threshold is of share holders around a member who give a secret, and who must have signed;
    `min_set` are the fewest survivors of a round, overall.

    Colluders are those who were before anybody knew the graph; the server chooses who drops out
    after it knows it. With t, no honest member's neighbourhood holds so many colluders that two
    sets could be opened there, and no two arcs of the circle so many that what lies between them
    could be opened by itself. With so many survivors, the honest ones among them hang together,
    where dropouts are chance.
    """
    for threshold in range(degree // 2 + 2, degree + 2):
        risk = max(2 * threshold - degree - 1, 1)
        if (members - colluders) * tail(members - 1, colluders, degree, risk) > LIMIT:
            continue
        if arcs(members, degree, threshold, colluders) > LIMIT:
            continue
        for size in range(max(threshold, colluders + 2), members + 1):
            # On a dense graph always: each of h members lacks fewer than h / 2 of the others.
            close = size - colluders >= 2 * (members - degree)
            away = colluders + members - size
            if close or parts(members, degree, away) <= LIMIT:
                return threshold, size
    return None


@functools.cache
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

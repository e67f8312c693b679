"""SASH+: the plan by which members of a large group add up their seeds among a few neighbours each.

The vector that `flhe.keys.pairwise` adds is the seed of a SASH mask, 16 kB whatever the model: so a
client's part in the agreement takes k neighbours, not N, and a round two more stages before the update.

Source: SASH, Sec. 4.1.2 (SASH+); Bell et al., CCS 2020.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

from flhe.errors import ConfigError
from flhe.keys.graph import Graph, arcs, parts, tail
from flhe.keys.masking import Circle
from flhe.keys.pairwise_plan import Plan

PURPOSE = "sash"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many it takes on a random graph.

    Parameters
    ----------
    threshold : int
        t: share holders around a member who give a secret, and who must have signed.
    min_set : int
        Fewest survivors of a round, overall.
    """

    threshold: int
    min_set: int


LIMIT = Fraction(1, 1 << 80)
"""Odds that we call never, graph by graph. Who contributes last to an epoch may try many graphs:
2**40 of them still leave odds of 2**-40."""


@functools.cache
def bounds_of(members: int, degree: int, colluders: int) -> Bounds:
    """The least bounds that `colluders` in the whole group do not defeat.

    Colluders are those who were before anybody knew the graph; the server chooses who drops out
    after it knows it. With t, no honest member's neighbourhood holds so many colluders that two
    sets could be opened there, and no two arcs of the circle so many that what lies between them
    could be opened by itself. With so many survivors, the honest ones among them hang together,
    where dropouts are chance.

    Raises
    ------
    ConfigError
        None do.
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
                return Bounds(threshold, size)
    raise ConfigError(
        f"{degree} neighbours of {members} members are too few against {colluders} colluders: take "
        "more, or 0 for all of them"
    )


def degree_of(neighbours: int, members: int, colluders: int) -> int | None:
    """Neighbours of each member in the graph; None where all share with all.

    One more where no graph has an odd number of members of an odd degree. Where no bounds would
    withstand the colluders, all share with all, which does: a group that shrinks or grows is never
    left without.
    """
    if neighbours == 0 or neighbours >= members - 1:
        return None
    degree = neighbours + (neighbours % 2 and members % 2)
    if degree >= members - 1:
        return None
    try:
        bounds_of(members, degree, colluders)
    except ConfigError:
        return None
    return degree


def min_set(circle: Circle, degree: int | None) -> int:
    """Fewest survivors of a round, on the graph or on all of them."""
    if degree is None:
        return circle.thresholds.min_set
    return bounds_of(len(circle.members), degree, circle.colluders).min_set


def seed_plan(
    circle: Circle, epoch_id: bytes, round_: int, attempt: int, start: bytes, degree: int
) -> Plan:
    """The plan of one attempt; the same on members and server.

    `start` says what the round starts from (`flhe.rounds.start.shared_start`): members whose models
    differ, or whose apps are told different things, have different plans, and share no keys.
    """
    members = len(circle.members)
    bounds = bounds_of(members, degree, circle.colluders)
    return Plan(
        purpose=PURPOSE,
        run_id=circle.run_id,
        roster_hash=circle.roster_hash,
        epoch=circle.number,
        epoch_id=epoch_id,
        members=circle.members,
        round=round_,
        attempt=attempt,
        # The epoch's id is a hash of everybody's contributions: nobody chose the graph.
        graph=Graph(members, degree, epoch_id),
        threshold=bounds.threshold,
        min_set=bounds.min_set,
        length=circle.elements,
        elements=True,
        layout_hash=start,
    )

"""The graph of SecAgg+ and SASH+: its shape, and what withstands how many colluders on it."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.papers.sash_plus import arcs, bounds_of, parts, tail
from flhe_lab.variants.secagg.graph import Graph

SEED = bytes(range(16))

SIZES = st.integers(3, 60).flatmap(
    lambda n: st.tuples(
        st.just(n), st.integers(2, n - 1).filter(lambda k: n % 2 == 0 or k % 2 == 0)
    )
)


@given(SIZES, st.binary(min_size=16, max_size=16))
def test_symmetric_regular_without_loops(size: tuple[int, int], seed: bytes) -> None:
    members, degree = size
    graph = Graph(members, degree, seed)
    for rank in range(members):
        found = graph.neighbours(rank)
        assert len(found) == degree == graph.holders - 1
        assert list(found) == sorted(set(found) - {rank})
        assert all(rank in graph.neighbours(other) for other in found)
        assert graph.around(rank) == tuple(sorted((*found, rank)))
    # Harary graphs are k-connected; here for neighbours of one member, the tightest case.
    assert in_one_piece(graph, set(range(members)) - set(graph.neighbours(0)[1:]))


def in_one_piece(graph: Graph, left: set[int]) -> bool:
    """Whether those of `left` hang together."""
    seen, front = set[int](), {min(left)}
    while front:
        seen |= front
        front = {n for r in front for n in graph.neighbours(r)} & left - seen
    return seen == left


@pytest.mark.parametrize("size", [(2, 1), (5, 5), (5, 1), (7, 3)])
def test_graphs_that_cannot_be(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="a degree of 2 to"):
        Graph(*size, SEED)
    with pytest.raises(ConfigError, match="16 bytes"):
        Graph(7, 4)


# --- bounds of SASH+ ---


@given(st.integers(1, 9), st.data())
def test_tail_is_what_counting_gives(population: int, data: st.DataObject) -> None:
    marked, draws = (data.draw(st.integers(0, population)) for _ in range(2))
    at = data.draw(st.integers(-1, population + 1))
    sets = list(itertools.combinations(range(population), draws))
    hits = sum(sum(i < marked for i in chosen) >= at for chosen in sets)
    assert tail(population, marked, draws, at) == Fraction(hits, len(sets))


@pytest.mark.parametrize(
    ("members", "degree", "away"), [(6, 4, 3), (7, 4, 2), (7, 2, 1), (8, 5, 4)]
)
def test_parts_bounds_what_all_permutations_give(members: int, degree: int, away: int) -> None:
    """So many in a row away: in every deal of the circle, whose ranks below `away` are away."""
    run, hits, deals = degree // 2, 0, 0
    for deal in itertools.permutations(range(members)):
        deals += 1
        hits += any(
            all(deal[(start + i) % members] < away for i in range(run)) for start in range(members)
        )
    assert Fraction(hits, deals) <= parts(members, degree, away)
    assert parts(members, degree, run - 1) == parts(members, members - 1, members) == 0
    assert arcs(members, members - 1, 2, 0) == 0


def test_bounds_withstand_the_colluders_that_they_are_for() -> None:
    for members, degree in ((60, 50), (200, 100), (500, 200)):
        colluders = (members - 1) // 3
        threshold, min_set = bounds_of(members, degree, colluders) or (0, 0)
        assert degree + 1 < 2 * threshold <= 2 * (degree + 1)
        assert colluders + 2 <= min_set < members
        rng = np.random.default_rng(0)
        # Far from 2**-40, and at least not wrong: no neighbourhood of many has so many of them.
        drawn = rng.hypergeometric(colluders, members - 1 - colluders, degree, 20_000)
        assert drawn.max() < 2 * threshold - degree - 1
        graphs = [Graph(members, degree, bytes([seed]) * 16) for seed in range(5)]
        assert len({graph.around(0) for graph in graphs}) == 5
        assert all(in_one_piece(graph, set(range(colluders, min_set))) for graph in graphs)
    assert bounds_of(200, 10, 66) is None

"""Graph and Thresholds: shape, who sees the same graph, and odds against counting by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.graph import LIMIT, Graph, least, tail
from flhe.keys.thresholds import Thresholds

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


@given(SIZES, st.binary(min_size=16, max_size=16))
def test_one_piece_after_fewer_than_degree_leave(size: tuple[int, int], seed: bytes) -> None:
    """Harary graphs are k-connected; here for neighbours of one member, the tightest case."""
    members, degree = size
    graph = Graph(members, degree, seed)
    left = set(range(members)) - set(graph.neighbours(0)[1:])
    seen, todo = {0}, [0]
    while todo:
        for other in graph.neighbours(todo.pop()):
            if other in left and other not in seen:
                seen.add(other)
                todo.append(other)
    assert seen == left


def test_the_complete_graph_needs_no_seed() -> None:
    graph = Graph.full(5)
    assert graph.complete
    assert graph.neighbours(3) == (0, 1, 2, 4)
    assert graph == Graph(5, 4)


def test_seeds_deal_every_place_alike() -> None:
    """Each of the other members is a neighbour equally often: a uniform permutation."""
    found = Counter(
        other for i in range(3000) for other in Graph(7, 2, i.to_bytes(16, "big")).neighbours(2)
    )
    assert set(found) == {0, 1, 3, 4, 5, 6}
    # 3000 draws of probability 1/3 each: a standard deviation of 26.
    assert all(abs(count - 1000) < 6 * 26 for count in found.values())


def test_the_same_graph_everywhere_and_another_from_another_seed() -> None:
    graph = Graph(12, 4, SEED)
    assert graph.neighbours(0) == Graph(12, 4, SEED).neighbours(0)
    assert any(graph.neighbours(r) != Graph(12, 4, bytes(16)).neighbours(r) for r in range(12))
    # Pinned: members of two versions of flhe must agree.
    assert [graph.neighbours(r) for r in (0, 11)] == [(3, 4, 6, 8), (2, 3, 5, 9)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((2, 1, SEED), "members=2"),
        ((1025, 4, SEED), "members=1025"),
        ((5, 5, SEED), "2 to 4"),
        ((5, 1, SEED), "2 to 4"),
        ((7, 3, SEED), "take degree 4"),
        ((7, 4, b""), "16 bytes"),
    ],
)
def test_graphs_that_cannot_be(arguments: tuple[int, int, bytes], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Graph(*arguments)


@pytest.mark.parametrize("rank", [-1, 7, True])
def test_ranks_that_are_nobody(rank: int) -> None:
    with pytest.raises(ProtocolError, match="no rank"):
        Graph(7, 4, SEED).neighbours(rank)


# --- odds ---


@given(st.integers(1, 9), st.data())
def test_tail_is_what_counting_gives(population: int, data: st.DataObject) -> None:
    marked, draws = (data.draw(st.integers(0, population)) for _ in range(2))
    at = data.draw(st.integers(-1, population + 1))
    sets = list(itertools.combinations(range(population), draws))
    hits = sum(sum(i < marked for i in chosen) >= at for chosen in sets)
    assert tail(population, marked, draws, at) == Fraction(hits, len(sets))


@pytest.mark.parametrize(("members", "degree"), [(6, 2), (6, 3), (7, 4), (6, 5)])
@pytest.mark.parametrize("honest_server", [True, False])
def test_odds_bound_what_all_permutations_give(
    members: int, degree: int, honest_server: bool
) -> None:
    """Deal the circle in every way; colluders are the first ranks, dropouts the last."""
    colluders = dropouts = 2
    threshold = (degree + 1) // 2 + 1
    graph = Graph(members, degree, SEED)
    shape = Graph.full(members) if graph.complete else graph
    steps = [
        {shape._place[o] for o in shape.around(shape._circle[p])} for p in range(members)
    ]  # places around each place
    bad, gone = set(range(colluders)), set(range(members - dropouts, members))
    risk = threshold if honest_server else 2 * threshold - degree - 1
    counts, members_hit = Counter[str](), Counter[str]()
    for deal in itertools.permutations(range(members)):
        around = {deal[p]: {deal[o] for o in steps[p]} for p in range(members)}
        hit = {
            "colluders": sum(len(around[r] & bad) >= risk for r in set(around) - bad),
            "survivors": sum(len(around[r] - gone) < threshold for r in around),
            "parts": sum(_row(deal, p, degree // 2) <= bad | gone for p in range(members)),
        }
        members_hit.update(hit)
        counts["colluders"] += hit["colluders"] > 0
        counts["survivors"] += hit["survivors"] > 0
        counts["parts"] += _parts(around, set(around) - bad - gone) > 1
    total = math.factorial(members)
    odds = graph.odds(threshold, colluders, dropouts, honest_server=honest_server)
    for name in ("colluders", "survivors", "parts"):
        bound = getattr(odds, name)
        assert Fraction(counts[name], total) <= bound, name
        if name != "parts" or not graph.complete:  # a complete graph has no parts
            assert bound == min(Fraction(members_hit[name], total), Fraction(1)), name
    assert odds.total <= 1


def _row(deal: tuple[int, ...], start: int, length: int) -> set[int]:
    return {deal[(start + i) % len(deal)] for i in range(length)}


def _parts(around: dict[int, set[int]], left: set[int]) -> int:
    parts, todo = 0, set(left)
    while todo:
        parts += 1
        reach = {todo.pop()}
        while reach:
            todo -= reach
            reach = {o for r in reach for o in around[r]} & todo
    return parts


def test_complete_graphs_have_no_chance_in_them() -> None:
    graph = Graph.full(10)
    bounds = Thresholds(10, 3)
    assert graph.check(bounds.threshold, 3, bounds.max_dropouts).total == 0
    with pytest.raises(ConfigError, match=r"too few survivors 2\^-0.*at no degree"):
        graph.check(bounds.threshold, 3, bounds.max_dropouts + 1)
    with pytest.raises(ConfigError, match=r"too many colluders in a neighbourhood with odds 2\^-0"):
        graph.check(bounds.threshold - 1, 3, 0)


def test_check_names_a_degree_that_does() -> None:
    with pytest.raises(
        ConfigError, match=r"at most 2\^-40 will do: take degree (\d+), threshold (\d+)"
    ):
        Graph(500, 100, SEED).check(68, 166, 50)
    found = least(500, 166, 50)
    assert found is not None
    degree, threshold = found
    assert Graph(500, degree, SEED).check(threshold, 166, 50).total <= LIMIT
    with pytest.raises(ConfigError, match=f"take degree {degree}"):
        Graph(500, degree - 2, SEED).check(threshold, 166, 50)


def test_an_honest_server_asks_for_less() -> None:
    """Some hundred neighbours among a thousand members, a third of whom collude."""
    trusting, wary = (least(1000, 333, 50, honest_server=h) for h in (True, False))
    assert trusting is not None
    assert wary is not None
    assert 60 <= trusting[0] <= 140 < wary[0]


@pytest.mark.parametrize(
    "arguments", [(0, 1, 1), (6, 1, 1), (4, -1, 1), (4, 10, 1), (4, 1, 10), (4, 1.0, 1)]
)
def test_odds_of_nonsense(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="Graph"):
        Graph(10, 4, SEED).odds(*arguments)


# --- thresholds ---


@given(st.integers(3, 2000), st.integers(0, 2000))
def test_thresholds(members: int, colluders: int) -> None:
    if colluders > members - 2:
        with pytest.raises(ConfigError, match="allow at most"):
            Thresholds(members, colluders)
        return
    bounds = Thresholds(members, colluders)
    assert 2 * bounds.threshold > members + colluders >= 2 * (bounds.threshold - 1)
    assert bounds.threshold + bounds.max_dropouts == members
    assert bounds.min_set == max(bounds.threshold, colluders + 2) <= members


@settings(max_examples=20)
@given(st.integers(3, 400))
def test_a_third_of_the_members_may_collude_and_nearly_a_third_drop_out(members: int) -> None:
    bounds = Thresholds(members, (members - 1) // 3)
    assert bounds.max_dropouts >= members // 3 - 1 >= 0


@pytest.mark.parametrize("arguments", [(2, 0), (5, -1), (5, 4), (5.0, 1), (5, True + 0.5)])
def test_thresholds_that_cannot_be(arguments: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="Thresholds"):
        Thresholds(*arguments)

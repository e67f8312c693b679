"""What colluders and the server learn of seeds in a round, by linear algebra.

A member's polynomial is a vector of t unknowns: elements that it shares, then random ones. A share
is a row times that vector, and what somebody sees is a matrix. As the random unknowns are uniform, a
view tells of elements what combinations of its rows depend on elements alone, and nothing more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pytest

from flhe.math.shamir import Shamir
from tests.keys.masking import Q

Rows = list[list[int]]


def rank_of(rows: Iterable[Sequence[int]]) -> int:
    """Rank over the field."""
    left, rank = [list(row) for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((i for i in range(rank, len(left)) if left[i][column]), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        inverse = pow(left[rank][column], -1, Q)
        for i in range(rank + 1, len(left)):
            if factor := left[i][column] * inverse % Q:
                left[i] = [(x - factor * y) % Q for x, y in zip(left[i], left[rank], strict=True)]
        rank += 1
    return rank


@functools.cache
def share_rows(sharing: Shamir) -> Rows:
    """Each member's row, out of what the code deals for every unknown alone."""
    columns = []
    for unknown in range(sharing.threshold):
        one = [int(i == unknown) for i in range(sharing.threshold)]
        fresh = b"".join(x.to_bytes(8, "little") for x in one[sharing.packing :])
        elements = np.array(one[: sharing.packing], np.uint64)
        columns.append(sharing.share(elements, lambda _, fresh=fresh: fresh)[:, 0].tolist())
    return [list(row) for row in zip(*columns, strict=True)]


class View:
    """What colluders and the server see of the honest members' polynomials, in one round."""

    def __init__(self, sharing: Shamir, honest: Sequence[int]) -> None:
        self.sharing, self.honest = sharing, list(honest)
        bad = [r for r in range(sharing.members) if r not in honest]
        self.rows = [self._row({u: share_rows(sharing)[b]}) for u in honest for b in bad]

    def _row(self, by_owner: dict[int, list[int]]) -> list[int]:
        nothing = [0] * self.sharing.threshold
        return [x for u in self.honest for x in by_owner.get(u, nothing)]

    def answers(self, survivors: Collection[int], ranks: Iterable[int]) -> None:
        """Sums of shares over a set, by some of its members."""
        for rank in ranks:
            row = share_rows(self.sharing)[rank]
            self.rows.append(self._row({u: row for u in self.honest if u in survivors}))

    def learned(self, of: Collection[int] | None = None) -> int:
        """Combinations that are known of the seeds of some honest members, of all by default."""
        t = self.sharing.threshold
        one = [[int(i == j) for j in range(t)] for i in range(self.sharing.packing)]
        about = [self._row({u: row}) for u in (self.honest if of is None else of) for row in one]
        return rank_of(self.rows) + rank_of(about) - rank_of([*self.rows, *about])


@pytest.mark.parametrize(
    "sharing", [Shamir(4, 3, 2), Shamir(4, 3, 1), Shamir(5, 4, 3), Shamir(5, 4, 1), Shamir(6, 4, 1)]
)
def test_a_sum_that_is_opened_tells_the_sum_and_no_more(sharing: Shamir) -> None:
    """With one colluder, and shares of one element or more in a polynomial."""
    everybody = range(sharing.members)
    for bad, survivors in itertools.product(
        everybody, itertools.combinations(everybody, sharing.members - 1)
    ):
        honest = [r for r in everybody if r != bad]
        view = View(sharing, honest)
        assert view.learned() == 0
        view.answers(survivors, survivors[: sharing.threshold])
        inside = [u for u in honest if u in survivors]
        assert view.learned() == view.learned(inside) == sharing.packing
        for out in inside:  # whoever is left out of it keeps the rest covered
            assert view.learned([u for u in inside if u != out]) == 0


@pytest.mark.parametrize(("size", "collusion"), [(5, 1), (6, 1), (7, 2), (10, 3)])
def test_what_answers_leak_that_were_not_enough(size: int, collusion: int) -> None:
    """Nothing up to c + 1 with the colluders' own; then one combination an answer, of the sum alone."""
    t = (size + collusion) // 2 + 1
    sharing = Shamir(size, t, collusion + 1)
    honest = list(range(collusion, size))
    for answers in range(t - collusion + 1):
        view = View(sharing, honest)
        view.answers(range(size), honest[:answers])
        assert view.learned() == max(answers - 1, 0)
        assert view.learned(honest[1:]) == view.learned(honest[:1]) == 0
    assert view.learned() == sharing.packing

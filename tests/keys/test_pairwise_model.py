"""Pairwise masking against a server that shows its members different sets, in every way there is.

Members' real steps are run once for each thing that the server can tell them; then every combination
of such things is counted through: never do shares of both secrets of one member come out, and never
are two sets opened.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import FlheError
from flhe.keys import pairwise, pairwise_server
from flhe.keys.messages import Envelope
from flhe.keys.pairwise import Masked, Plan, Signed
from tests.keys.masking import group, plan_for, run, vectors_for

Set = tuple[int, ...]


class Members:
    """Members that have uploaded, and what each says to whatever it is told."""

    def __init__(self, size: int, collusion: int, degree: int | None, bad: Iterable[int]) -> None:
        self.plan: Plan = plan_for(size, collusion=collusion, degree=degree)
        left = run(self.plan, vectors_for(self.plan), collusion=collusion, until="mask")
        self.bad = frozenset(bad)
        self.honest = [r for r in range(size) if r not in self.bad]
        self._masked: dict[int, Masked] = left.states
        self._statements = [state.message for state in self._masked.values()]
        self._identities = group(size, collusion)[0]

    @functools.cache  # noqa: B019
    def signs(self, rank: int, senders: Set) -> Signed | None:
        try:
            return pairwise.consist(self._masked[rank], senders, self._statements)[0]
        except FlheError:
            return None

    def accepted(self, rank: int) -> list[Set]:
        """Every set that the member signs."""
        ranks = range(len(self.plan.members))
        sets = itertools.chain.from_iterable(
            itertools.combinations(ranks, n) for n in range(len(ranks) + 1)
        )
        return [each for each in sets if self.signs(rank, each)]

    @functools.cache  # noqa: B019
    def signature(self, rank: int, senders: Set) -> bytes:
        """An honest member's, or one that a colluder makes for any set."""
        if rank in self.bad:
            header = self.plan.header(pairwise.SET, rank)
            bits = pairwise.to_bits(self.plan, senders)
            return Envelope.seal(self._identities[rank], header, bits).to_bytes()
        signed = self.signs(rank, senders)
        assert signed is not None
        return signed.message

    @functools.cache  # noqa: B019
    def answers(self, rank: int, senders: Set, told: frozenset[tuple[int, Set]]) -> bool:
        """Whether a member that signed `senders` answers to these signatures."""
        signed = self.signs(rank, senders)
        assert signed is not None
        try:
            _, message = pairwise.unmask(signed, [self.signature(*each) for each in told])
        except FlheError:
            return False
        read = pairwise_server.read_answer(self.plan, senders, message)
        assert set(read.owners) == set(self.plan.graph.around(rank))
        return True

    def answered(self, rank: int, choice: dict[int, Set | None], every: bool) -> bool:
        """Whether the server can make the member answer, where each has signed its `choice`."""
        mine = choice[rank]
        if mine is None:
            return False
        near = self.plan.graph.neighbours(rank)
        others = [(r, c) for r, c in choice.items() if r in near and c is not None]
        others += [(r, mine) for r in self.bad if r in near]
        if not every:
            return self.answers(rank, mine, frozenset(o for o in others if o[1] == mine))
        return any(
            self.answers(rank, mine, frozenset(told))
            for count in range(len(others) + 1)
            for told in itertools.combinations(others, count)
        )

    def revealed(
        self, choice: dict[int, Set | None], *, every: bool
    ) -> tuple[set[Set], Counter[str]]:
        """Sets that were answered; how many got their secrets out, by kind."""
        out: set[Set] = set()
        seeds, keys = Counter[int](), Counter[int]()
        for rank in self.honest:
            if not self.answered(rank, choice, every):
                continue
            senders = choice[rank]
            assert senders is not None
            out.add(senders)
            for owner in self.plan.graph.around(rank):
                (seeds if owner in senders else keys)[owner] += 1
        found = Counter[str]()
        for owner in self.honest:
            free = len(self.bad & set(self.plan.graph.around(owner)))
            seed, key = (c[owner] + free >= self.plan.threshold for c in (seeds, keys))
            found["seed"] += seed
            found["key"] += key
            found["both"] += seed and key
            # Who answered stays masked towards its neighbours for good.
            found["answered, key"] += key and any(
                owner == r and self.answered(r, choice, every=False) for r in self.honest
            )
        return out, found


@pytest.mark.parametrize(
    ("size", "collusion", "bad"),
    [(3, 0, ()), (4, 0, ()), (4, 1, (0,)), (4, 1, (2,))],
)
def test_no_server_gets_both_secrets_or_two_sums(
    size: int, collusion: int, bad: tuple[int, ...]
) -> None:
    members = Members(size, collusion, None, bad)
    options: list[list[Set | None]] = [[None, *members.accepted(rank)] for rank in members.honest]
    assert all(len(each) > 1 for each in options)
    seen = Counter[str]()
    for picked in itertools.product(*options):
        choice = dict(zip(members.honest, picked, strict=True))
        sets, found = members.revealed(choice, every=True)
        assert not found["both"]
        assert not found["answered, key"]
        assert len(sets) <= 1
        seen += found
        seen["opened"] += len(sets)
    # It is not that nothing comes out, ever.
    assert seen["opened"]
    assert seen["seed"]
    assert seen["key"] or members.plan.threshold == size


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_nor_on_a_sparse_graph(data: st.DataObject) -> None:
    members = sparse()
    pool = data.draw(
        st.lists(
            st.lists(st.sampled_from(range(7)), min_size=4, max_size=7, unique=True).map(
                lambda ranks: tuple(sorted(ranks))
            ),
            min_size=2,
            max_size=3,
            unique=True,
        )
    )
    options: list[list[Set | None]] = [
        [None, *(each for each in pool if members.signs(rank, each))] for rank in members.honest
    ]
    for picked in itertools.islice(itertools.product(*options), 2000):
        choice = dict(zip(members.honest, picked, strict=True))
        _, found = members.revealed(choice, every=False)
        assert not found["both"]
        assert not found["answered, key"]


@functools.cache
def sparse() -> Members:
    """Seven members of degree 4; the one who colludes is one around anybody: threshold 4."""
    members = Members(7, 1, 4, (0,))
    assert members.plan.threshold == 4
    return members

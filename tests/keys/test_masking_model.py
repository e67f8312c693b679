"""Masking-key agreement against a server that asks members whatever it likes, in every order there is.

A member is a small automaton, written down here. First the real stages are compared with it: in each
state that messages lead to, what they answer to each message, and what is on the disk then. Next the
product of such members is searched: never are two sets opened, whoever colludes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from flwr.app import Message

from flhe.keys.agreement.answers import check_answer
from flhe.keys.agreement.thresholds import Thresholds
from flhe.node.witness import Witness
from tests.fuzz.recorded import Disk, put, taken
from tests.mods.harness import Site, answer, refused, update
from tests.mods.masked import Masked, answer_in, signature_in

Set = tuple[int, ...]
Named = tuple[int, Set]
"""An attempt, and a set of survivors in it."""
ATTEMPTS = (0, 1)


# --- a member, in the small ---


@dataclass(frozen=True)
class Letter:
    """Asks for an update, proposes a set with all shares for it, or shows `count` signatures on one."""

    stage: Literal["round", "consist", "unmask"]
    attempt: int
    survivors: Set = ()
    count: int = 0


Said = Literal["update", "again", "signature", "answer"] | int
"""What a member answers, or the code that it refuses with."""
PROTOCOL, QUORUM, REUSE, AUTHENTICATION, CLAIMED = 1014, 1011, 1012, 1013, 1022


@dataclass(frozen=True)
class Member:
    """Attempts that were encrypted, and sets that were signed."""

    rank: int
    uploads: Set = ()
    signed: frozenset[Named] = frozenset()
    answered: bool = False
    """Whether it notes that what opens the set may have left: then it does not give the set up."""

    @property
    def attempt(self) -> int | None:
        return max(self.uploads, default=None)

    def hears(self, rules: Thresholds, letter: Letter) -> tuple[Said, Member]:
        """What it answers, and what it is then."""
        if letter.stage == "round":
            return self._round(letter.attempt)
        if letter.stage == "consist":
            return self._consist(rules, letter.attempt, letter.survivors)
        said = self._unmask(rules, letter)
        return said, replace(self, answered=True) if said == "answer" else self

    def _round(self, attempt: int) -> tuple[Said, Member]:
        if attempt == self.attempt:
            return "again", self
        if self.signed:
            return REUSE, self
        if attempt < max(self.uploads, default=0):
            return CLAIMED, self
        return "update", replace(self, uploads=(*self.uploads, attempt))

    def _consist(self, rules: Thresholds, attempt: int, survivors: Set) -> tuple[Said, Member]:
        if attempt != self.attempt:
            return PROTOCOL, self
        if len(survivors) < rules.min_set:
            return QUORUM, self
        named = (attempt, survivors)
        others = {each for each in self.signed - {named} if each[0] == attempt}
        if others:
            return REUSE, self
        return "signature", replace(self, signed=self.signed | {named})

    def _unmask(self, rules: Thresholds, letter: Letter) -> Said:
        mine = next((s for a, s in self.signed if a == letter.attempt), None)
        if mine is None or not set(letter.survivors[: letter.count]) <= set(mine):
            return PROTOCOL
        if letter.count < rules.threshold:
            return QUORUM
        return "answer" if letter.survivors == mine else AUTHENTICATION


def sets_with(members: int, rank: int) -> list[Set]:
    every = itertools.chain.from_iterable(
        itertools.combinations(range(members), n) for n in range(1, members + 1)
    )
    return [each for each in every if rank in each]


def alphabet(rules: Thresholds, rank: int) -> list[Letter]:
    letters = [Letter("round", attempt) for attempt in ATTEMPTS]
    for attempt, survivors in itertools.product(ATTEMPTS, sets_with(rules.members, rank)):
        letters.append(Letter("consist", attempt, survivors))
        counts = sorted({rules.threshold - 1, rules.threshold, len(survivors)})
        fitting = [n for n in counts if n <= len(survivors)]
        letters += [Letter("unmask", attempt, survivors, n) for n in fitting]
    return letters


# --- the real stages are such a member ---


class Node:
    """One site among others who have dealt in every attempt; its disk can be rolled back."""

    def __init__(
        self, path: Path, size: int, rank: int, unmask: Literal["server", "clients"]
    ) -> None:
        self.group = group = Masked(path, size, unmask).agree()
        self.rank, self.sealed = rank, unmask == "clients"
        self.others = [other for other in range(size) if other != rank]
        for attempt, other in itertools.product(ATTEMPTS, self.others):
            assert not group.upload(other, attempt=attempt).has_error()
        last = group.dealt(self.others[0]).slot
        self.slots = [replace(last, attempt=attempt) for attempt in ATTEMPTS]
        base = {} if self.sealed else {"base": 0}
        answer(group.ask(self.site, "sync", **base))  # type: ignore[arg-type]

    @property
    def site(self) -> Site:
        return self.group.sites[self.rank]

    def disk(self) -> Disk:
        """Everything that lasts but logs; locks are empty."""
        found = taken(self.site.home).items()
        return {n: d for n, d in found if not (n.endswith(".log") or n.startswith("lock"))}

    @functools.cache  # noqa: B019
    def signature(self, rank: int, attempt: int, survivors: Set) -> bytes:
        return self.group.forged(rank, survivors, self.slots[attempt])

    def asked(self, letter: Letter) -> Message:
        attempt, survivors = letter.attempt, letter.survivors
        if letter.stage == "round":
            return self.group.upload(self.rank, attempt=attempt)
        if letter.stage == "consist":
            return self.group.consist(self.rank, survivors, attempt=attempt)
        shown = {r: self.signature(r, attempt, survivors) for r in survivors[: letter.count]}
        return self.group.unmask(self.rank, shown, attempt=attempt)

    def check(self, said: Said, letter: Letter, reply: Message, sent: bytes) -> None:
        """What the automaton says is what was answered; `sent` is the digest of the last update."""
        if isinstance(said, int):
            refused(reply, said)
            return
        attempt, survivors = letter.attempt, letter.survivors
        if letter.stage == "round":
            assert answer(reply)["resent"] is (said == "again")
            assert said == "update" or update(reply).digest() == sent
            return
        if letter.stage == "consist":
            assert signature_in(reply) == self.signature(self.rank, attempt, survivors)
            return
        scope, told = (self.group.circle, self.slots[attempt], survivors), answer_in(reply)
        rank, payload = check_answer(*scope, told, sealed=self.sealed)
        share = bytes(self.group.agreed(self.rank).share)
        assert rank == self.rank
        assert (payload == share) is not self.sealed
        assert (share[:64] in payload) is not self.sealed


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks that are rolled back, thousands of times: what would notice it is tested elsewhere."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(Witness, "check", lambda *_: None)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize(
    ("size", "rank", "unmask", "states"),
    [
        (3, 2, "clients", 25),
        pytest.param(4, 1, "server", 31, marks=pytest.mark.sweep),
    ],
)
def test_a_node_is_such_a_member(
    tmp_path: Path, size: int, rank: int, unmask: Literal["server", "clients"], states: int
) -> None:
    """Whatever messages came before, however many: they lead to these few states, and to no others.

    Each message is answered by a fresh process, so all that it can change is on the disk.
    """
    node = Node(tmp_path, size, rank, unmask)
    rules = Thresholds(size, node.group.epoch(rank).roster.collusion)
    letters = alphabet(rules, rank)
    queue = [(Member(rank), node.disk(), b"")]
    seen = 0
    while queue:
        member, disk, sent = queue.pop()
        seen += 1
        for letter in letters:
            put(node.site.home, disk)
            reply = node.asked(letter)
            said, then = member.hears(rules, letter)
            node.check(said, letter, reply, sent)
            after = node.disk()
            if then == member:
                assert after == disk
                continue
            assert after != disk
            queue.append((then, after, update(reply).digest() if said == "update" else sent))
    assert seen == states
    assert not [*node.site.home.rglob(".*")]


# --- many such members ---


class Search:
    """Everything that a server and its colluders can bring honest members to.

    Colluders sign every set that the server has them in, and hold a share of every seed. It can propose
    a set to a member only where it has the shares of all honest ones in it.
    """

    def __init__(self, rules: Thresholds, bad: Set) -> None:
        self.rules, self.bad = rules, bad
        self.honest = [rank for rank in range(rules.members) if rank not in bad]
        self._moves: dict[Member, list[tuple[Named | None, Member]]] = {}
        self.visited = 0

    def moves(self, member: Member) -> list[tuple[Named | None, Member]]:
        """Where a member can be brought to, and the set whose shares that takes."""
        if member not in self._moves:
            found: list[tuple[Named | None, Member]] = []
            for letter in alphabet(self.rules, member.rank):
                if letter.stage == "unmask":
                    continue  # `opened` asks for all answers
                _, then = member.hears(self.rules, letter)
                if then != member:
                    named = letter.attempt, letter.survivors
                    found.append((named if letter.stage == "consist" else None, then))
            self._moves[member] = found
        return self._moves[member]

    def states(self) -> Iterator[tuple[Member, ...]]:
        start = tuple(Member(rank) for rank in self.honest)
        stack, seen = [start], {start}
        while stack:
            state = stack.pop()
            yield state
            for at, member in enumerate(state):
                for named, then in self.moves(member):
                    if named is not None and not self._dealt(state, *named):
                        continue
                    after = (*state[:at], then, *state[at + 1 :])
                    if after not in seen:
                        seen.add(after)
                        stack.append(after)
        self.visited = len(seen)

    def _dealt(self, state: tuple[Member, ...], attempt: int, survivors: Set) -> bool:
        return all(attempt in m.uploads for m in state if m.rank in survivors)

    def opened(self, state: tuple[Member, ...]) -> set[Named]:
        """Sets of which the server gets the sum of seeds."""
        need, out = self.rules.threshold, set()
        for attempt, survivors in {named for member in state for named in member.signed}:
            signers = [m for m in state if (attempt, survivors) in m.signed]
            agreed = len(signers) + len(set(self.bad) & set(survivors))
            if agreed < need:
                continue
            shown = Letter("unmask", attempt, survivors, need)
            assert all(m.hears(self.rules, shown)[0] == "answer" for m in signers)
            if len(signers) + len(self.bad) >= need:
                out.add((attempt, survivors))
        return out


GROUPS = [
    (members, colluders, bad)
    for members, colluders in ((3, 0), (4, 0), (4, 1))
    for count in range(colluders + 1)
    for bad in itertools.combinations(range(members), count)
]


@pytest.mark.parametrize(("members", "colluders", "bad"), GROUPS, ids=str)
def test_no_two_sets_of_a_round_are_opened(members: int, colluders: int, bad: Set) -> None:
    rules = Thresholds(members, colluders)
    search = Search(rules, bad)
    all_opened = set()
    for state in search.states():
        opened = search.opened(state)
        assert len(opened) <= 1
        assert all(len(s) >= max(rules.threshold, colluders + 2) for _, s in opened)
        assert all(len(set(s) - set(bad)) >= 2 for _, s in opened)
        assert all(len(member.signed) <= 1 for member in state)
        all_opened |= opened
    # It is not that nothing ever opens: each set may, in each attempt.
    sizes = range(rules.min_set, members + 1)
    ranks = range(members)
    every = {s for n in sizes for s in itertools.combinations(ranks, n) if set(s) - set(bad)}
    assert all_opened == set(itertools.product(ATTEMPTS, every))
    assert search.visited > 100

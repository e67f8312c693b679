"""Two implementations of one scheme, by turns: who encrypts, who adds and who opens is drawn.

Sums are trees: some senders' ciphertexts are added by one implementation, those of others by the
other, and then the sums. Where no implementation draws anything by itself, each ciphertext is made
twice and compared byte by byte, and so is each sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.sealed import Sealed, Slot
from tests.reference.wire import NEAR, Book, Clear, Wire, context, numbers, slot_fields, total_of

SLOTS = st.builds(
    slot_fields,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
)
"""Any round at all, as it stands in a file."""


@dataclass(frozen=True)
class Both:
    """The library's implementation beside the book's.

    Parameters
    ----------
    scheme : Scheme
        The library's public parameters.
    sealer : callable
        Rank -> a new sealer.
    opener : callable
        Ranks of a sum -> its opener.
    book : Book
        The other one.
    mode : str
        What is announced.
    floats : int
        Coordinates of the layout, for supports.
    exact : bool
        Whether both make the same ciphertexts, and refuse the very same sums.
    any_set : bool
        Whether a dense sum of other senders can be looked at: there are keys for them.
    slot : dict
        The round.
    sealers : dict of int to Sealer
        Those that sealed last, where they keep a seed.
    """

    scheme: Scheme
    sealer: Callable[[int], Sealer]
    opener: Callable[[Sequence[int]], Opener]
    book: Book
    mode: str = ""
    floats: int = 0
    exact: bool = True
    any_set: bool = True
    slot: Any = None
    sealers: dict[int, Any] = field(default_factory=dict)

    @property
    def at(self) -> Slot:
        """The round, as the library knows it."""
        return Slot(*context(self.slot or NEAR))

    def seal(self, rank: int, clear: Clear, *, prepare: bool = False) -> Wire:
        """By the library."""
        support, coords = None, None
        if clear.coords is not None:
            coords = np.array(clear.coords, np.uint32)
            support = Support.of(coords, self.floats)
        plain = Plain(np.array(clear.values, np.int32), np.array(clear.extras, np.int32), coords)
        slot, sealer = self.at, self.sealer(rank)
        if prepare and support is None:
            sealer.prepare(slot, len(clear.lanes), self.mode)
        sealed = sealer.encrypt(plain, slot, mode=self.mode, support=support)
        return self.wire(sealed)

    def add(self, parts: Sequence[Wire]) -> Wire:
        """By the library."""
        total = None
        for part in parts:
            total = self.scheme.add(total, self.sealed(part))
        assert total is not None
        return self.wire(self.scheme.close(total))

    def open(self, wire: Wire) -> list[int]:
        """By the library."""
        opened: list[int] = self.opener(wire.senders).decrypt(self.sealed(wire)).tolist()
        return opened

    def sealed(self, wire: Wire) -> Sealed:
        """A message as the library reads it, under the book's header."""
        body = np.frombuffer(wire.body, np.uint8)
        return Sealed.from_parts(self.book.header(wire), body, floats=self.floats)

    def wire(self, sealed: Sealed) -> Wire:
        """What the library wrote; its header must be the book's."""
        supports = tuple(support.data for support in sealed.supports)
        wire = Wire(sealed.senders, sealed.length, sealed.data.tobytes(), supports)
        assert sealed.header() == self.book.header(wire)
        return wire


@dataclass(frozen=True)
class Turns:
    """Who encrypts what, who adds, in which groups.

    Parameters
    ----------
    clears : dict of int to Clear
        Rank -> what it encrypts, in the order of addition.
    seals : dict of int to bool
        Rank -> whether the library encrypts it.
    groups : list of (list of int, bool)
        Ranks that are added at a time, and whether by the library.
    last : bool
        Whether the library adds the groups' sums.
    prepare : bool
        Whether the library's masks are made ahead.
    """

    clears: dict[int, Clear]
    seals: dict[int, bool]
    groups: list[tuple[list[int], bool]]
    last: bool
    prepare: bool


def agree(both: Both, turns: Turns) -> Wire:
    """Go through it; returns the sum, which both opened to what was encrypted."""
    book = both.book
    parts = {}
    for rank, clear in turns.clears.items():
        ours = turns.seals[rank]
        parts[rank] = (
            both.seal(rank, clear, prepare=turns.prepare) if ours else book.seal(rank, clear)
        )
        if both.exact:
            again = book.seal(rank, clear) if ours else both.seal(rank, clear)
            assert again == parts[rank], f"rank {rank}: ciphertexts differ"

    def added(wires: list[Wire], by_library: bool) -> Wire:
        one, other = both.add(wires), book.add(wires)
        assert one == other, "sums differ"
        return one if by_library else other

    sums = [added([parts[rank] for rank in ranks], ours) for ranks, ours in turns.groups]
    total = added(sums, turns.last)
    assert total.senders == tuple(sorted(turns.clears))
    expected = total_of([turns.clears[rank] for rank in total.senders])
    assert both.open(total) == expected
    assert book.open(total) == expected
    return total


def judge_alike(both: Both, total: Wire, data: st.DataObject) -> None:
    """A sum with one bit flipped, or under fewer names: both open it to the same, or neither does.

    Where slots are reals the library may be the stricter one.
    """
    wrong = total
    if both.any_set and len(total.senders) > 1 and data.draw(st.booleans()):
        left = data.draw(st.sampled_from(total.senders))
        wrong = replace(total, senders=tuple(s for s in total.senders if s != left))
    elif total.data:
        place = data.draw(st.integers(0, 8 * len(total.data) - 1))
        flipped = bytearray(total.data)
        flipped[place // 8] ^= 1 << (place % 8)
        wrong = replace(total, data=bytes(flipped))
    one, other = _outcome(both.open, wrong), _outcome(both.book.open, wrong)
    assert one == other or (one is None and not both.exact)


def _outcome(read: Callable[[Wire], list[int]], wire: Wire) -> list[int] | None:
    try:
        return read(wire)
    except (ProtocolError, ValueError):
        return None


def values(count: int, bits: int, salt: int, edges: Sequence[int]) -> list[int]:
    """Numbers that fill the space of `bits` bits; where `edges` has a sign, that end of it."""
    most = 2 ** (bits - 1) - 1
    return [edge * most for edge in edges][:count] + numbers(count + 2, bits, salt)[
        2 + len(edges) :
    ]


@st.composite
def turns(
    draw: st.DrawFn,
    *,
    cohort: int,
    bits: int,
    floats: int,
    extras: int = 3,
    most: int = 4,
    sparse: bool = False,
    everyone: bool = False,
) -> Turns:
    """Any senders in any order, with any values.

    Parameters
    ----------
    cohort, bits : int
        As for the scheme.
    floats, extras : int
        Coordinates of the layout; how many extras there are at most.
    most : int
        Senders at most.
    sparse : bool
        Whether each sender has a support.
    everyone : bool
        Whether all of the cohort send.
    """
    ends = st.sampled_from([0, cohort - 1]) | st.integers(0, cohort - 1)
    some = st.lists(ends, min_size=1, max_size=most, unique=True)
    ranks: list[int] = draw(st.permutations(range(cohort)) if everyone else some)
    behind = draw(st.integers(0, extras))
    clears = {}
    for rank in ranks:
        coords = None
        if sparse:
            chosen = st.sets(st.integers(0, max(floats - 1, 0)), max_size=floats)
            coords = draw(st.just(list(range(floats))) | chosen.map(sorted))
        count = floats if coords is None else len(coords)
        edges = draw(st.lists(st.sampled_from([-1, 0, 1]), max_size=6))
        lanes = values(count + behind, bits, draw(st.integers(0, 2**20)), edges)
        clears[rank] = Clear(lanes[:count], lanes[count:], coords)
    cuts = sorted({0, len(ranks), *draw(st.lists(st.integers(0, len(ranks)), max_size=2))})
    pieces = [ranks[a:b] for a, b in itertools.pairwise(cuts)]
    return Turns(
        clears,
        {rank: draw(st.booleans()) for rank in ranks},
        [(piece, draw(st.booleans())) for piece in pieces],
        draw(st.booleans()),
        draw(st.booleans()),
    )

"""Every scheme against its second implementation, by turns: who encrypts, adds and opens is drawn.

Sums are trees: some senders' ciphertexts are added by one implementation, those of others by the
other, and then the sums. Where no implementation draws anything by itself, each ciphertext is made
twice and compared byte by byte, and so is each sum.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.errors import ProtocolError
from flhe.schemes.presets import SEAL
from flhe.schemes.sash.adder import most_bits
from tests.reference import esafl
from tests.reference.fedml_he import ternary
from tests.reference.flashe import GROUP_KEY
from tests.reference.kinds import Both, Case
from tests.reference.sash import PRESETS
from tests.reference.schemes import SCHEMES
from tests.reference.wire import NEAR, Clear, Wire, numbers, slot_fields, total_of

NOTHING = Plain(np.empty(0, np.int32), np.empty(0, np.int32))

U32, HASH = st.integers(0, 2**32 - 1), st.binary(min_size=32, max_size=32)
EPOCH = st.binary(min_size=16, max_size=16)
SLOTS = st.builds(slot_fields, st.integers(0, 2**64 - 1), U32, U32, HASH, EPOCH, HASH, HASH)
"""Any round at all, as it stands in a file."""

Data = st.DataObject
Played = tuple[Both, Wire]
Game = Callable[[Data, bool], Played]
"""(what is drawn, whether at length) -> both implementations, and a sum that both made and opened."""


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
    book, exact = both.book, both.kind.exact
    parts = {}
    for rank, clear in turns.clears.items():
        ours = turns.seals[rank]
        made = [book.seal(rank, clear)] if exact or not ours else []
        made += [both.seal(rank, clear, turns.prepare)] if exact or ours else []
        assert all(wire == made[0] for wire in made), f"rank {rank}: ciphertexts differ"
        parts[rank] = made[0]

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


def judge_alike(both: Both, total: Wire, data: Data) -> None:
    """A sum with one bit flipped, or under fewer names: both open it to the same, or neither does.

    Where slots are reals the library may be the stricter one.
    """
    wrong = total
    if both.kind.any_set(both.case) and len(total.senders) > 1 and data.draw(st.booleans()):
        left = data.draw(st.sampled_from(total.senders))
        wrong = replace(total, senders=tuple(s for s in total.senders if s != left))
    elif total.data:
        place = data.draw(st.integers(0, 8 * len(total.data) - 1))
        flipped = bytearray(total.data)
        flipped[place // 8] ^= 1 << (place % 8)
        wrong = replace(total, data=bytes(flipped))
    one, other = _outcome(both.open, wrong), _outcome(both.book.open, wrong)
    assert one == other or (one is None and not both.kind.exact)


def _outcome(read: Callable[[Wire], list[int]], wire: Wire) -> list[int] | None:
    try:
        return read(wire)
    except (ProtocolError, ValueError):
        return None


def values(count: int, bits: int, salt: int, edges: Sequence[int]) -> list[int]:
    """Numbers that fill the space of `bits` bits; where `edges` has a sign, that end of it."""
    most = 2 ** (bits - 1) - 1
    rest = numbers(count + 2, bits, salt)[2 + len(edges) :]
    return [edge * most for edge in edges][:count] + rest


@st.composite
def turns(
    draw: st.DrawFn, case: Case, floats: int, extras: int = 3, most: int = 4, everyone: bool = False
) -> Turns:
    """Any senders, at most so many, or everyone; in any order, with any values."""
    cohort, bits, sparse = case["cohort"], case["bits"], case.get("sparse", False)
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


def tapes(name: str, salt: int, moves: Turns, size: int) -> dict[int, bytes]:
    """What each rank's random source gives."""
    told = {rank: f"{name} {salt} {rank}".encode() for rank in moves.clears}
    return {rank: hashlib.shake_256(word).digest(size) for rank, word in told.items()}


def slots(long: bool) -> st.SearchStrategy[Case]:
    """Another round costs the book another polynomial: short tests have one."""
    return SLOTS if long else st.just(NEAR)


def lengths(long: bool, most: int) -> st.SearchStrategy[int]:
    """Values; now and then so many that blocks are full."""
    short = st.integers(0, 24)
    return short | st.integers(0, most) if long else short


# --- each scheme's own ---


def flashe_dense(data: Data, long: bool, *, sparse: bool = False) -> Played:
    case: Case = {"cohort": data.draw(st.integers(2, 6) | st.integers(2, 1024))}
    case |= {"bits": data.draw(st.integers(2, 32)), "key": GROUP_KEY.hex(), "sparse": sparse}
    masking = data.draw(st.sampled_from(["double", "single", "adaptive"]))
    mode = data.draw(st.sampled_from(["double", "single"])) if masking == "adaptive" else ""
    # A layout of no floats has no supports: to a reader, a length of 0 says that none may come.
    floats = data.draw(lengths(long, 9000)) + sparse
    case |= {"masking": masking, "mode": mode, "length": floats, "slot": data.draw(SLOTS)}
    both = Both(SCHEMES["flashe"], case)
    return both, agree(both, data.draw(turns(case, floats)))


def flashe_sparse(data: Data, long: bool) -> Played:
    return flashe_dense(data, long, sparse=True)


def sash(data: Data, long: bool) -> Played:
    preset = data.draw(st.sampled_from(sorted(PRESETS)) if long else st.just("ring-2048"))
    cohort = data.draw(st.integers(2, 6) | st.sampled_from([100, 1000, 1024]))
    bits, salt = data.draw(st.just(0) | st.integers(2, most_bits(cohort))), data.draw(SALTS)
    case: Case = {"cohort": cohort, "bits": bits or most_bits(cohort), "preset": preset}
    case |= {"slot": data.draw(slots(long))}
    floats = data.draw(lengths(long and preset.startswith("ring"), 2100))
    moves = data.draw(turns(case, floats, most=3))
    case |= {"bits": bits, "tapes": tapes("sash", salt, moves, 8 * PRESETS[preset] + 80)}
    both, rank = Both(SCHEMES["sash"], case), next(iter(moves.clears))
    both.seal(rank, Clear([], []))
    assert both.sealers[rank].take_seed(both.at).tolist() == both.kind.book(case).seed(rank)
    return both, agree(both, moves)


def batchcrypt(data: Data, long: bool) -> Played:
    case: Case = {"cohort": data.draw(st.integers(2, 5) | st.sampled_from([100, 1024]))}
    case |= {"bits": data.draw(st.integers(2, 32)), "slot": data.draw(SLOTS)}
    moves = data.draw(turns(case, data.draw(lengths(long, 700)), extras=2, most=3))
    case["tapes"] = tapes("batchcrypt", data.draw(SALTS), moves, 128 * 100)
    both = Both(SCHEMES["batchcrypt"], case)
    return both, agree(both, moves)


def fedml_he(data: Data, long: bool) -> Played:
    ring = data.draw(st.sampled_from(sorted(SEAL) if long else ["2048"]))
    cohort = data.draw(st.integers(2, 6) | st.sampled_from([10, 50]))
    case: Case = {"cohort": cohort, "bits": data.draw(st.integers(2, 24)), "ring": ring}
    case |= {"key": ternary(data.draw(st.integers(0, 3)), int(ring))}
    case |= {"slot": data.draw(slots(long))}
    both = Both(SCHEMES["ckks"], case)
    return both, agree(both, data.draw(turns(case, data.draw(lengths(long, 2500)), most=3)))


def esafl_joint(data: Data, long: bool, *, keys: str = "joint") -> Played:
    rings = [esafl.GOLDILOCKS, "rns-4096", *(["rns-8192", "rns-16384"] if long else [])]
    everyone = keys == "joint"
    case: Case = {"cohort": data.draw(st.integers(2, 3 if everyone else 5)), "keys": keys}
    case |= {"bits": data.draw(st.sampled_from([2, 8, 16])), "slot": data.draw(slots(long))}
    case |= {"ring": data.draw(st.sampled_from(rings))}
    both, floats = Both(SCHEMES["eshe"], case), data.draw(lengths(long, 300))
    return both, agree(both, data.draw(turns(case, floats, most=3, everyone=everyone)))


def esafl_of_a_round(data: Data, long: bool) -> Played:
    return esafl_joint(data, long, keys="round")


SALTS = st.integers(0, 2**16)

GAMES: dict[Game, tuple[int, int]] = {
    flashe_dense: (30, 1500),
    flashe_sparse: (30, 1500),
    sash: (15, 250),
    batchcrypt: (15, 250),
    fedml_he: (12, 120),
    esafl_joint: (15, 100),
    esafl_of_a_round: (15, 100),
}
"""What is played -> how often, by default and in the sweep."""


AT_LENGTH = pytest.param(True, marks=[pytest.mark.sweep, pytest.mark.timeout(0)], id="at length")


@pytest.mark.parametrize("long", [pytest.param(False, id=""), AT_LENGTH])
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.__name__)
def test_both_make_and_open_the_same_sums(game: Game, long: bool) -> None:
    unhurried = list(HealthCheck) if long else [HealthCheck.too_slow]

    @settings(deadline=None, max_examples=GAMES[game][long], suppress_health_check=unhurried)
    @given(st.data())
    def play(data: Data) -> None:
        judge_alike(*game(data, long), data)

    play()

"""Every scheme against its second implementation: any senders, any values, by turns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.schemes.presets import CKKS
from flhe.schemes.sash.scheme import most_bits
from tests.reference import beside, esafl
from tests.reference.batchcrypt import BatchCryptBook
from tests.reference.esafl import EsaflBook
from tests.reference.fedml_he import ternary
from tests.reference.flashe import FlasheBook
from tests.reference.mixing import SLOTS, Both, agree, judge_alike, turns
from tests.reference.sash import PRESETS, SashBook
from tests.reference.wire import NEAR, Wire

NOTHING = Plain(np.empty(0, np.int32), np.empty(0, np.int32))

Data = st.DataObject
Played = tuple[Both, Wire]
Game = Callable[[Data, bool], Played]
"""(what is drawn, whether at length) -> both implementations, and a sum that both made and opened."""


def tape(salt: int, name: str, rank: int, size: int) -> bytes:
    """What a rank's random source gives."""
    return hashlib.shake_256(f"{name} {salt} {rank}".encode()).digest(size)


def slots(long: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Another round costs the book another polynomial: short tests have one."""
    return SLOTS if long else st.just(NEAR)


def lengths(long: bool, most: int) -> st.SearchStrategy[int]:
    """Values; now and then so many that blocks are full."""
    short = st.integers(0, 24)
    return short | st.integers(0, most) if long else short


# --- each scheme's own ---


def flashe(data: Data, long: bool, *, sparse: bool) -> Played:
    cohort = data.draw(st.integers(2, 6) | st.integers(2, 1024))
    bits = data.draw(st.integers(2, 32))
    masking = data.draw(st.sampled_from(["double", "single", "adaptive"]))
    mode = data.draw(st.sampled_from(["double", "single"])) if masking == "adaptive" else ""
    # A layout of no floats has no supports: to a reader, a length of 0 says that none may come.
    floats, slot = data.draw(lengths(long, 9000)) + sparse, data.draw(SLOTS)
    both = beside.flashe(FlasheBook(cohort, bits, masking, mode, floats, sparse, slot))
    moves = data.draw(turns(cohort=cohort, bits=bits, floats=floats, sparse=sparse))
    return both, agree(both, moves)


def flashe_dense(data: Data, long: bool) -> Played:
    return flashe(data, long, sparse=False)


def flashe_sparse(data: Data, long: bool) -> Played:
    return flashe(data, long, sparse=True)


def sash(data: Data, long: bool) -> Played:
    preset = data.draw(st.sampled_from(sorted(PRESETS)) if long else st.just("ring-2048"))
    cohort = data.draw(st.integers(2, 6) | st.sampled_from([100, 1000, 1024]))
    bits = data.draw(st.just(0) | st.integers(2, most_bits(cohort)))
    salt, slot = data.draw(st.integers(0, 2**16)), data.draw(slots(long))
    ring = preset.startswith("ring")
    floats = data.draw(lengths(long and ring, 2100))
    moves = data.draw(turns(cohort=cohort, bits=bits or most_bits(cohort), floats=floats, most=3))
    tapes = {rank: tape(salt, "sash", rank, 8 * PRESETS[preset] + 80) for rank in moves.clears}
    book = SashBook(cohort, bits, preset, tapes, slot)
    both, rank = beside.sash(book), next(iter(moves.clears))
    both.sealer(rank).encrypt(NOTHING, both.at)
    assert both.sealers[rank].take_seed(both.at).tolist() == book.seed(rank)
    return both, agree(both, moves)


def batchcrypt(data: Data, long: bool) -> Played:
    cohort = data.draw(st.integers(2, 5) | st.sampled_from([100, 1024]))
    bits, salt = data.draw(st.integers(2, 32)), data.draw(st.integers(0, 2**16))
    floats, slot = data.draw(lengths(long, 700)), data.draw(SLOTS)
    moves = data.draw(turns(cohort=cohort, bits=bits, floats=floats, extras=2, most=3))
    tapes = {rank: tape(salt, "batchcrypt", rank, 128 * 100) for rank in moves.clears}
    both = beside.batchcrypt_(BatchCryptBook(cohort, bits, tapes, slot))
    return both, agree(both, moves)


def fedml_he(data: Data, long: bool) -> Played:
    ring = data.draw(st.sampled_from(sorted(CKKS) if long else ["2048"]))
    cohort = data.draw(st.integers(2, 6) | st.sampled_from([10, 50]))
    bits = data.draw(st.integers(2, 24))
    salt, slot = data.draw(st.integers(0, 3)), data.draw(slots(long))
    floats = data.draw(lengths(long, 2500))
    book = beside.fedml_he_book(cohort, bits, ring, ternary(salt, int(ring)), slot)
    both = beside.fedml_he_(book)
    return both, agree(both, data.draw(turns(cohort=cohort, bits=bits, floats=floats, most=3)))


def esafl_of(data: Data, long: bool, *, keys: str) -> Played:
    rings = [esafl.GOLDILOCKS, "rns-4096", *(["rns-8192", "rns-16384"] if long else [])]
    ring = data.draw(st.sampled_from(rings))
    cohort = data.draw(st.integers(2, 3) if keys == "joint" else st.integers(2, 5))
    bits, slot = data.draw(st.sampled_from([2, 8, 16])), data.draw(slots(long))
    floats = data.draw(lengths(long, 300))
    everyone = keys == "joint"
    moves = data.draw(turns(cohort=cohort, bits=bits, floats=floats, most=3, everyone=everyone))
    both = beside.esafl_(EsaflBook(cohort, bits, ring, keys, slot))
    return both, agree(both, moves)


def esafl_joint(data: Data, long: bool) -> Played:
    return esafl_of(data, long, keys="joint")


def esafl_of_a_round(data: Data, long: bool) -> Played:
    return esafl_of(data, long, keys="round")


GAMES: dict[Game, tuple[int, int]] = {
    flashe_dense: (100, 1500),
    flashe_sparse: (100, 1500),
    sash: (40, 250),
    batchcrypt: (15, 250),
    fedml_he: (20, 120),
    esafl_joint: (15, 100),
    esafl_of_a_round: (15, 100),
}
"""What is played -> how often, by default and in the sweep."""


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.__name__)
def test_both_make_and_open_the_same_sums(game: Game) -> None:
    @settings(deadline=None, max_examples=GAMES[game][0])
    @given(st.data())
    def play(data: Data) -> None:
        judge_alike(*game(data, False), data)

    play()


@pytest.mark.sweep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.__name__)
def test_both_make_and_open_the_same_sums_at_length(game: Game) -> None:
    @settings(deadline=None, max_examples=GAMES[game][1], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def play(data: Data) -> None:
        judge_alike(*game(data, True), data)

    play()

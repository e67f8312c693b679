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
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.esafl.keys import EsheKey
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.ring import Ckks, CkksOpener, CkksSealer
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.presets import CKKS
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer, most_bits
from flhe.schemes.sealed import Slot
from tests.math.test_permutation_vectors import GROUP_KEY, NEAR, context
from tests.math.test_shamir_vectors import Tape
from tests.schemes import eshe_second
from tests.schemes.test_paillier_vectors import GROUP_KEY as PAILLIER_KEY
from tests.schemes.test_sash_vectors import PRESETS, Q, added
from tests.second import ckks as ckks_book
from tests.second.ckks import CkksBook
from tests.second.eshe import EsheBook
from tests.second.flashe import FlasheBook
from tests.second.mixing import SLOTS, Both, agree, judge_alike, turns
from tests.second.paillier import PaillierBook, pair
from tests.second.sash import SashBook
from tests.second.wire import Wire

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
    scheme = Flashe(cohort, bits, masking)  # type: ignore[arg-type]
    both = Both(
        scheme,
        lambda rank: FlasheSealer(scheme, GROUP_KEY, rank),
        lambda _: FlasheOpener(scheme, GROUP_KEY),
        FlasheBook(cohort, bits, masking, mode, floats, sparse, slot),
        mode,
        floats if sparse else 0,
        any_set=not sparse,
        slot=slot,
    )
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
    scheme = Sash(cohort, bits, preset)
    book = SashBook(cohort, bits, preset, tapes, slot)

    def opener(ranks: Any) -> SashOpener:
        seed = added([book.seed(rank) for rank in ranks], Q)
        return SashOpener(scheme, np.array(seed, np.uint64))

    def sealer(rank: int) -> SashSealer:
        return SashSealer(scheme, rank, random=Tape(tapes[rank]))

    rank = next(iter(moves.clears))
    taken, at = sealer(rank), Slot(*context(slot))
    taken.encrypt(NOTHING, at)
    assert taken.take_seed(at).tolist() == book.seed(rank)
    both = Both(scheme, sealer, opener, book, slot=slot)
    return both, agree(both, moves)


def batchcrypt(data: Data, long: bool) -> Played:
    cohort = data.draw(st.integers(2, 5) | st.sampled_from([100, 1024]))
    bits, salt = data.draw(st.integers(2, 32)), data.draw(st.integers(0, 2**16))
    floats, slot = data.draw(lengths(long, 700)), data.draw(SLOTS)
    cut = data.draw(st.integers(0, floats))
    moves = data.draw(turns(cohort=cohort, bits=bits, floats=floats, extras=2, most=3))
    behind = len(next(iter(moves.clears.values())).extras)
    runs = data.draw(st.sampled_from([(), (cut, 0, floats - cut, behind), (floats + behind + 1,)]))
    tapes = {rank: tape(salt, "batchcrypt", rank, 128 * 100) for rank in moves.clears}
    key = SecretKey(pair().p, pair().q)
    scheme, group_key = Paillier(cohort, bits, 2048, key.public, runs), PAILLIER_KEY
    both = Both(
        scheme,
        lambda rank: PaillierSealer(scheme, key, group_key, rank, random=Tape(tapes[rank])),
        lambda _: PaillierOpener(scheme, key, group_key),
        PaillierBook(cohort, bits, runs, tapes, slot),
        slot=slot,
    )
    return both, agree(both, moves)


def ckks(data: Data, long: bool) -> Played:
    ring = data.draw(st.sampled_from(sorted(CKKS) if long else ["2048"]))
    cohort = data.draw(st.integers(2, 6) | st.sampled_from([10, 50]))
    bits = data.draw(st.integers(2, 24))
    salt, slot = data.draw(st.integers(0, 3)), data.draw(slots(long))
    floats = data.draw(lengths(long, 2500))
    scheme = Ckks(cohort, bits, ring)
    sizes = scheme.sizes
    book = CkksBook(cohort, bits, sizes.n, sizes.bits, sizes.per, sizes.scale_bits, salt, slot=slot)
    assert (book.q, book.width, book.block) == (sizes.q, sizes.width, sizes.block)
    key = CkksSecret(ring, np.array(ckks_book.ternary(salt, sizes.n), np.int8))
    both = Both(
        scheme,
        lambda rank: CkksSealer(scheme, key, ckks_book.GROUP_KEY, rank),
        lambda _: CkksOpener(scheme, key, ckks_book.GROUP_KEY),
        book,
        exact=False,
        slot=slot,
    )
    return both, agree(both, data.draw(turns(cohort=cohort, bits=bits, floats=floats, most=3)))


def eshe(data: Data, long: bool, *, keys: str) -> Played:
    rings = [eshe_second.GOLDILOCKS, "rns-4096", *(["rns-8192", "rns-16384"] if long else [])]
    ring = data.draw(st.sampled_from(rings))
    cohort = data.draw(st.integers(2, 3) if keys == "joint" else st.integers(2, 5))
    bits, slot = data.draw(st.sampled_from([2, 8, 16])), data.draw(slots(long))
    floats = data.draw(lengths(long, 300))
    scheme = Eshe(cohort, bits, ring, keys)  # type: ignore[arg-type]
    book = EsheBook(cohort, bits, ring, keys, slot)
    n, group_key = book.second.n, book.second.group_key
    everyone = keys == "joint"
    moves = data.draw(turns(cohort=cohort, bits=bits, floats=floats, most=3, everyone=everyone))

    def total(ranks: Any) -> Any:
        return np.array(eshe_second.key_of(ranks, n), np.int32)

    def sealer(rank: int) -> EsheSealer:
        own, seed = np.array(eshe_second.own(rank, n), np.int8), eshe_second.noise_seed(rank)
        if everyone:
            key = EsheKey(own, total(range(cohort)))
            return EsheSealer(scheme, group_key, rank, key, random=Tape(seed))
        return EsheSealer(scheme, group_key, rank, random=Tape(eshe_second.key_seed(rank) + seed))

    def opener(ranks: Any) -> EsheOpener:
        return EsheOpener(scheme, group_key, total(ranks))

    both = Both(scheme, sealer, opener, book, any_set=not everyone, slot=slot)
    return both, agree(both, moves)


def eshe_joint(data: Data, long: bool) -> Played:
    return eshe(data, long, keys="joint")


def eshe_of_a_round(data: Data, long: bool) -> Played:
    return eshe(data, long, keys="round")


GAMES: dict[Game, tuple[int, int]] = {
    flashe_dense: (100, 1500),
    flashe_sparse: (100, 1500),
    sash: (40, 250),
    batchcrypt: (15, 250),
    ckks: (20, 120),
    eshe_joint: (15, 100),
    eshe_of_a_round: (15, 100),
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

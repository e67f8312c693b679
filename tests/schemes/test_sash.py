"""SASH: parameters, exact sums at any cohort, wrong seeds that are always told, and what is shown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Integers
from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import Q, add
from flhe.schemes.base import MAX_COHORT
from flhe.schemes.sash.adder import (
    SashAdder,
    SashOpener,
    SashSealer,
    guard_bits,
    most_bits,
    public_key,
)
from flhe.schemes.sash.scheme import SASH, Sash
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, OTHER_SLOTS, SLOT, whole
from tests.roles import drawn

Lanes = NDArray[np.int32]


def sum_up(
    scheme: SashAdder,
    vectors: Iterable[Lanes],
    random: Callable[[int], Any] = lambda _: token_bytes,
) -> tuple[Sealed, list[NDArray[np.uint64]]]:
    """Real ciphertexts of all members, added up; their seeds."""
    total, seeds = None, []
    for rank, lanes in enumerate(vectors):
        sealer = SashSealer(scheme, rank, random=random(rank))
        total = scheme.add(total, sealer.encrypt(whole(lanes), SLOT))
        seeds.append(sealer.take_seed(SLOT))
    assert total is not None
    return total, seeds


def summed(seeds: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return functools.reduce(add, seeds)


def seed_of(scheme: SashAdder, number: int) -> NDArray[np.uint64]:
    return SashSealer(scheme, 0, random=drawn(KEY, number))._mask(SLOT, 0)[0]


def mask(scheme: SashAdder, seed: NDArray[np.uint64], length: int) -> NDArray[np.uint32]:
    out = np.empty(length, np.uint32)
    scheme.expand(SLOT, seed, out)
    return out


# --- parameters ---


def test_every_cohort_has_just_the_room_for_its_sum_its_error_and_a_wrong_key() -> None:
    for cohort in range(2, MAX_COHORT + 1):
        scheme = Sash().adder(cohort)
        g, bits = scheme.guard, scheme.bits
        assert (g, bits) == (guard_bits(cohort), most_bits(cohort))
        assert scheme.space == Integers(2 ** (bits - 1) - 1)
        bound, most = (cohort + 1) // 2, cohort * (2 ** (bits - 1) - 1)
        wrong = 2 * bound + 1
        assert 2**g >= cohort + 2
        assert bound < 2 ** (g - 1)  # no error is taken for another value
        assert 2**g * most + bound < 2**31
        assert (wrong / 2**g) ** 1000 < 0.001  # a wrong key, on 1,000 values
        # One guard bit fewer would not do: a wrong key would pass once in 20,000 times.
        assert 2 ** (g - 1) < cohort + 2 or (wrong / 2 ** (g - 1)) ** 1000 > 1 / 24_000
        assert 32 - g - bits == (cohort - 1).bit_length()
        assert bits >= 11


# --- exact sums ---


def test_sums_of_many_are_exact() -> None:
    cohort, rng, length = 1000, np.random.default_rng(3), 2500
    scheme = Sash().adder(cohort)
    most = scheme.space.bound
    ends = np.where(np.arange(length) % 2, most, -most).astype(np.int32)
    drawn_ = rng.integers(-most, most + 1, (cohort, length)).astype(np.int32)
    for vectors in (drawn_, [ends] * cohort):
        total, seeds = sum_up(scheme, vectors)
        opened = SashOpener(scheme, summed(seeds)).decrypt(total)
        assert opened.dtype == np.int32
        assert np.array_equal(opened, np.sum(vectors, axis=0, dtype=np.int64))


# --- what the homomorphism adds ---


def residuals(scheme: SashAdder, count: int, length: int) -> NDArray[np.int64]:
    """G(k_1) + ... + G(k_n) - G(k_1 + ... + k_n), around zero."""
    masks, seeds = np.zeros(length, np.uint32), []
    for i in range(count):
        seeds.append(seed_of(scheme, i))
        masks += mask(scheme, seeds[-1], length)
    return (masks - mask(scheme, summed(seeds), length)).view(np.int32).astype(np.int64)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 100])
def test_the_error_of_a_sum_stays_within_its_bound(count: int) -> None:
    """|e| <= (n + 1) / 2, and no smaller bound that grows with n would do for few."""
    off = residuals(Sash().adder(100), count, 20_000)
    assert 2 * np.abs(off).max() <= count + 1
    if count <= 3:
        assert np.abs(off).max() == count // 2
    else:
        assert 0 < np.abs(off).max() < count
        assert off.var() == pytest.approx((count + 1) / 12, rel=0.1)


@pytest.mark.parametrize("cohort", [2, 3, 10, 62, 100, 1000])
def test_an_error_is_accepted_up_to_the_bound_and_refused_beyond_it(cohort: int) -> None:
    scheme = Sash().adder(cohort)
    seed = seed_of(scheme, 1)
    masks = mask(scheme, seed, 5)
    for senders in {1, 2, cohort // 2 or 1, cohort}:
        bound, half = (senders + 1) // 2, 1 << (scheme.guard - 1)
        for e in range(-half, half):
            lanes = masks + (np.array([-9, -1, 0, 1, 9], np.int32) << scheme.guard).view(np.uint32)
            lanes += np.array([0, 0, 0, e, 0], np.int32).view(np.uint32)
            total = Sealed("sash", SLOT, tuple(range(senders)), 5, lanes.view(np.uint8))
            opener = SashOpener(scheme, seed)
            if abs(e) <= bound:
                assert opener.decrypt(total).tolist() == [-9, -1, 0, 1, 9]
            else:
                with pytest.raises(ProtocolError, match=f"off by more than the {bound} that"):
                    opener.decrypt(total)


# --- wrong seeds ---


def worst() -> list[int]:
    """For each number of guard bits the cohort whose error leaves the fewest residues that tell."""
    share = {n: (2 * ((n + 1) // 2) + 1) / 2 ** guard_bits(n) for n in range(2, MAX_COHORT + 1)}
    bits = {guard_bits(n) for n in share}
    return [max((n for n in share if guard_bits(n) == g), key=share.__getitem__) for g in bits]


WORST = sorted({62, 126, 254, 510, 1000, *(n for n in worst() if n >= 62)})


@pytest.mark.parametrize("cohort", WORST)
def test_a_wrong_sum_of_seeds_is_told_on_a_thousand_values(cohort: int) -> None:
    """400 of them at the cohorts where it is hardest; the right one opens."""
    scheme = Sash().adder(cohort)
    zero = np.zeros(1000, np.int32)
    total, seeds = sum_up(scheme, [zero] * cohort, lambda rank: drawn(KEY, rank))
    right = summed(seeds)
    assert not SashOpener(scheme, right).decrypt(total).any()
    rng, told, trials = np.random.default_rng(cohort), 0, 400
    for trial in range(trials):
        seed = right.copy()
        at, rank = int(rng.integers(seed.size)), int(rng.integers(cohort))
        kind = trial % 4
        if kind == 0:  # one element is off by one
            seed[at] = (int(seed[at]) + (1 if trial % 8 else Q - 1)) % Q
        elif kind == 1:  # a sender's is missing
            seed = add(seed, np.uint64(Q) - seeds[rank])
        elif kind == 2:  # one is there twice
            seed = add(seed, seeds[rank])
        else:  # an element is anything
            seed[at] = rng.integers(Q, dtype=np.uint64)
        try:
            SashOpener(scheme, seed).decrypt(total)
        except ProtocolError:
            told += 1
    assert told == trials


def test_the_public_matrix_is_of_an_epoch_and_of_a_preset() -> None:
    keys = {public_key(preset, slot) for preset in SASH.values() for slot in OTHER_SLOTS.values()}
    assert len(keys) == len(SASH) * 4  # run, roster and epoch, and one for all the rest
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize("preset", SASH)
def test_seeds_of_another_shape_or_type_are_refused(preset: str) -> None:
    scheme = Sash(preset=preset).adder(3)
    total, seeds = sum_up(scheme, [np.zeros(20, np.int32)] * 3)
    right = summed(seeds)
    for wrong in (
        right[:-1],
        np.append(right, np.uint64(0)),
        right[:0],
        right.astype(np.float64),
        right.reshape(1, -1),
    ):
        with pytest.raises((ConfigError, ProtocolError)):
            SashOpener(scheme, wrong).decrypt(total)

"""SASH: parameters, exact sums at any cohort, wrong seeds that are always told, and what is shown."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.spaces import Integers
from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import Q, add
from flhe.schemes.presets import BAR, DEFAULT_SASH, SASH, SashPreset, sash_preset
from flhe.schemes.sash.generator import Shprg, public_key
from flhe.schemes.sash.scheme import MAX_COHORT, Sash, SashOpener, SashSealer, guard_bits, most_bits
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, OTHER_SLOTS, SLOT, drawn
from tests.scripted import PyCryptodome

NOTHING = np.empty(0, np.int32)
Lanes = NDArray[np.int32]


def plain(lanes: Any) -> Plain:
    return Plain(np.asarray(lanes, np.int32), NOTHING)


def sum_up(
    scheme: Sash, vectors: Iterator[Lanes], draw: bool = False
) -> tuple[Sealed, list[NDArray[np.uint64]], NDArray[np.int64]]:
    """Real ciphertexts of all members, added up; their seeds; the sum in plain."""
    total, seeds, expected = None, [], np.zeros(0, np.int64)
    for rank, lanes in enumerate(vectors):
        sealer = SashSealer(scheme, rank, random=drawn(KEY, rank) if draw else secrets.token_bytes)
        total = scheme.add(total, sealer.encrypt(plain(lanes), SLOT))
        seeds.append(sealer.take_seed(SLOT))
        expected = lanes.astype(np.int64) if rank == 0 else expected + lanes
    assert total is not None
    return total, seeds, expected


def summed(seeds: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return functools.reduce(add, seeds)


# --- parameters ---


@pytest.mark.parametrize(
    ("cohort", "bits"), [(10, 24), (50, 20), (100, 18), (256, 15), (1000, 12), (1024, 11)]
)
def test_bits_that_a_cohort_leaves_room_for(cohort: int, bits: int) -> None:
    assert most_bits(cohort) == Sash(cohort).bits == bits
    assert Sash(cohort).space == Integers(2 ** (bits - 1) - 1)


def test_every_cohort_has_room_for_its_sum_its_error_and_a_wrong_key() -> None:
    for cohort in range(2, MAX_COHORT + 1):
        g, bits = guard_bits(cohort), most_bits(cohort)
        bound = (cohort + 1) // 2
        assert 2**g >= cohort + 2
        assert bound < 2 ** (g - 1)  # no error is taken for another value
        most = cohort * (2 ** (bits - 1) - 1)
        assert 2**g * most + bound < 2**31
        assert -(2**g) * most - bound >= -(2**31)
        assert ((2 * bound + 1) / 2**g) ** 1000 < 0.001  # a wrong key, on 1,000 values
        assert bits >= 11
        scheme = Sash(cohort)
        assert (scheme.guard, scheme.bits) == (g, bits)


def test_no_guard_bit_is_spare() -> None:
    """One fewer would not hold the error, or would let a wrong key pass once in 20,000 times."""
    for cohort in range(2, MAX_COHORT + 1):
        g = guard_bits(cohort) - 1
        residues = 2 * ((cohort + 1) // 2) + 1
        assert 2**g < cohort + 2 or (residues / 2**g) ** 1000 > 1 / 24_000
        assert 32 - guard_bits(cohort) - most_bits(cohort) == (cohort - 1).bit_length()


def test_presets() -> None:
    assert DEFAULT_SASH in SASH
    for name, preset in SASH.items():
        assert (name, preset) == (preset.name, sash_preset(name))
        assert preset.security >= BAR
        assert Sash(10, preset=name).parameters_of_prg is preset


@pytest.mark.parametrize(
    ("form", "dimension", "security", "says"),
    [
        ("matrix", 512, 128, "mu >= 736"),
        ("matrix", 735, 128, "mu >= 736"),
        ("matrix", 4097, 128, "mu >= 736"),
        ("matrix", 736, 127, "127 bits of security, 128 are needed"),
        ("ring", 1024, 128, "2048, 4096 or 8192"),
        ("ring", 2049, 128, "2048, 4096 or 8192"),
        ("ring", 16384, 128, "2048, 4096 or 8192"),
    ],
)
def test_presets_below_the_bar(form: Any, dimension: int, security: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SashPreset("own", form, dimension, security, "a guess")


def test_what_is_public_is_hashed() -> None:
    assert Sash(10).parameters() == Sash(10, 24).parameters()
    assert Sash(10).phases == ("consist", "unmask")
    assert Sash(10).nbytes(1000) == 4000
    assert (Sash(10).reader, Sash(10, unmask="clients").reader) == ("server", "clients")


# --- exact sums ---


def kinds(scheme: Sash, length: int) -> dict[str, Callable[[int], Lanes]]:
    """Rank -> vector, by kind."""
    most = scheme.space.bound
    mixed = np.where(np.arange(length) % 2, most, -most).astype(np.int32)
    rng = np.random.default_rng(3)
    return {
        "zero": lambda _: np.zeros(length, np.int32),
        "random": lambda _: rng.integers(-most, most + 1, length).astype(np.int32),
        "all at the top": lambda _: np.full(length, most, np.int32),
        "all at the bottom": lambda _: np.full(length, -most, np.int32),
        "mixed": lambda rank: mixed if rank % 2 else -mixed,
        "mixed, all alike": lambda _: mixed,
    }


@pytest.mark.parametrize(
    ("cohort", "preset", "length"),
    [
        *((cohort, "ring-2048", 2500) for cohort in (2, 3, 10, 100, 256, 1000)),
        *((cohort, name, 150) for cohort in (2, 100) for name in ("lwr-736", "lwr-1024")),
    ],
)
def test_sums_are_exact(cohort: int, preset: str, length: int) -> None:
    scheme = Sash(cohort, preset=preset)
    for name, vector in kinds(scheme, length).items():
        total, seeds, expected = sum_up(scheme, (vector(rank) for rank in range(cohort)))
        opened = SashOpener(scheme, summed(seeds)).decrypt(total)
        assert opened.dtype == np.int32
        assert np.array_equal(opened, expected), name


# --- what the homomorphism adds ---


def residuals(scheme: Sash, count: int, length: int) -> NDArray[np.int64]:
    """G(k_1) + ... + G(k_n) - G(k_1 + ... + k_n), around zero."""
    generator, masks, seeds = scheme.generator(SLOT), np.zeros(length, np.uint32), []
    for i in range(count):
        seeds.append(SashSealer(scheme, 0, random=drawn(KEY, i))._mask(SLOT, 0)[0])
        masks += generator.expand(seeds[-1], length)
    return (masks - generator.expand(summed(seeds), length)).view(np.int32).astype(np.int64)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 100])
def test_the_error_of_a_sum_stays_within_its_bound(count: int) -> None:
    """|e| <= (n + 1) / 2, and no smaller bound that grows with n would do for few."""
    off = residuals(Sash(100), count, 20_000)
    assert 2 * np.abs(off).max() <= count + 1
    if count <= 3:
        assert np.abs(off).max() == count // 2
    else:
        assert 0 < np.abs(off).max() < count
        assert off.var() == pytest.approx((count + 1) / 12, rel=0.1)


@pytest.mark.parametrize("cohort", [2, 3, 10, 62, 100, 1000])
def test_an_error_is_accepted_up_to_the_bound_and_refused_beyond_it(cohort: int) -> None:
    scheme = Sash(cohort)
    seed = SashSealer(scheme, 0, random=drawn(KEY, 1))._mask(SLOT, 0)[0]
    masks = scheme.generator(SLOT).expand(seed, 5)
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
    """2,000 of them at the cohorts where it is hardest; the right one opens."""
    scheme = Sash(cohort)
    zero = np.zeros(1000, np.int32)
    total, seeds, _ = sum_up(scheme, (zero for _ in range(cohort)), draw=True)
    right = summed(seeds)
    assert not SashOpener(scheme, right).decrypt(total).any()
    rng, told, trials = np.random.default_rng(cohort), 0, 2000
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
    scheme = Sash(3, preset=preset)
    total, seeds, _ = sum_up(scheme, (np.zeros(20, np.int32) for _ in range(3)))
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


@pytest.mark.parametrize("preset", SASH)
@pytest.mark.parametrize("source", [lambda n: b"", lambda n: bytes(n - 8), lambda n: bytes(n + 8)])
def test_a_random_source_that_gives_another_number_of_bytes(
    preset: str, source: Callable[[int], bytes]
) -> None:
    """Too few would be a weaker seed, none at all no mask."""
    with pytest.raises((ConfigError, ProtocolError)):
        SashSealer(Sash(3, preset=preset), 0, random=source).encrypt(plain([1, 2]), SLOT)


# --- seeds ---


def test_seeds_come_from_the_systems_randomness() -> None:
    assert SashSealer(Sash(3), 0).random is secrets.token_bytes


# --- the generator ---


@pytest.mark.parametrize("preset", SASH)
def test_masks_are_the_same_from_anywhere_on_any_threads(preset: str) -> None:
    named = sash_preset(preset)
    generator = Shprg(named, public_key(named, SLOT))
    seed = SashSealer(Sash(3, preset=preset), 0, random=drawn(KEY, 5))._mask(SLOT, 0)[0]
    length = 3 * 2048 + 17 if named.form == "ring" else 5 * 64 + 17
    whole = generator.expand(seed, length)
    for threads in (2, 3, 5):
        assert np.array_equal(generator.expand(seed, length, threads), whole)
    some = (0, 1, generator.step - 1, generator.step, generator.step + 1, named.dimension + 2)
    for part in (size for size in some if size <= length):
        assert np.array_equal(generator.expand(seed, part), whole[:part])
    other = Shprg(named, public_key(named, SLOT), PyCryptodome())
    assert np.array_equal(other.expand(seed, length), whole)

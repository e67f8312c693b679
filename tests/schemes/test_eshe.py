"""ESHE beyond the laws: the worked example, keys of an epoch, sizes, what is told apart and refused."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.limb_packing import PIECE
from flhe.errors import ConfigError, ProtocolError, ReuseError
from flhe.math.prime_ring import PrimeRing
from flhe.math.ring import Q, add
from flhe.math.sampling import Gaussian
from flhe.schemes import presets
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.keys import EsheKey, check_own, check_total, draw_own
from flhe.schemes.esafl.rlwe import Rlwe, rlwe_for
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.presets import ESHE, EshePreset
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT

NOTHING = np.empty(0, np.int64)


@functools.cache
def keys(cohort: int, dimension: int) -> tuple[EsheKey, ...]:
    """What the members of an epoch hold."""
    owns = [draw_own(dimension) for _ in range(cohort)]
    total: NDArray[np.int32] = np.array(owns, np.int32).sum(axis=0, dtype=np.int32)
    return tuple(EsheKey(own, total) for own in owns)


def sealer(scheme: Eshe, rank: int, **how: Any) -> EsheSealer:
    return EsheSealer(scheme, KEY, rank, keys(scheme.cohort, scheme.sizes.n)[rank], **how)


def opener(scheme: Eshe, **how: Any) -> EsheOpener:
    return EsheOpener(scheme, KEY, keys(scheme.cohort, scheme.sizes.n)[0].total, **how)


def vectors(scheme: Eshe, length: int, seed: int = 1) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    bound = scheme.space.bound
    return [rng.integers(-bound, bound + 1, length).astype(np.int32) for _ in range(scheme.cohort)]


def summed(scheme: Eshe, xs: list[NDArray[Any]], ranks: Any = None) -> Sealed:
    total = None
    for rank in range(scheme.cohort) if ranks is None else ranks:
        part = sealer(scheme, rank).encrypt(Plain(xs[rank], NOTHING), SLOT)
        total = scheme.add(total, part)
    assert total is not None
    return total


# --- the worked example ---


def test_the_worked_example() -> None:
    """n=4, q=1009, p=16: c = a s + p e + m, by the kernels that every ciphertext goes through."""
    from flhe.math import coefficient_kernels

    ring = PrimeRing(4, 1009)
    a = np.array([[123, 456, 789, 1000]], np.uint64)
    s = np.array([1, 0, 1008, 1], np.uint64)  # 1, 0, -1, 1
    c = ring.products(ring.forward(s), ring.forward(a))
    e, m = np.array([1, -1, 0, 2], np.int8), np.array([1, 2, 3, 4], np.int32)
    # One slot of 4 bits, p = 2^4, and values that are not shifted.
    coefficient_kernels.lift_one(m, 1, 0, 4, 4, e, np.uint64(1009), c[0], 0, 4)
    assert c[0].tolist() == [473, 653, 678, 703]


# --- keys of an epoch ---


@pytest.mark.parametrize("ring", ESHE)
@pytest.mark.parametrize("cohort", [2, 10])
def test_the_sum_of_all_opens(ring: str, cohort: int) -> None:
    for keys_ in ("joint", "dealt"):
        scheme = Eshe(cohort, 16, ring, keys_)  # type: ignore[arg-type]
        xs = vectors(scheme, 5_001)
        opened = opener(scheme, threads=2).decrypt(summed(scheme, xs))
        assert opened.tolist() == np.sum(xs, axis=0).tolist()


def test_one_block_is_never_used_for_two() -> None:
    """The paper's a^t serves a whole round: there, ciphertexts' differences are those of messages."""
    scheme = Eshe(3)
    n, per = scheme.sizes.n, scheme.sizes.slots.per
    x = np.zeros(2 * n * per, np.int32)
    made = sealer(scheme, 0)
    words = made.encrypt(Plain(x, NOTHING), SLOT).data.view(np.uint64)
    difference = (words[:n].astype(object) - words[n:].astype(object)) % Q
    small = [min(int(d), Q - int(d)) < 100 << scheme.sizes.slots.log_p for d in difference]
    assert np.mean(small) < 0.5  # under one `a`: all of them
    with pytest.raises(ReuseError, match="encrypted a vector before"):
        made.encrypt(Plain(x, NOTHING), SLOT)


def test_a_lasting_key_is_no_seed() -> None:
    with pytest.raises(ReuseError, match="there is no key"):
        sealer(Eshe(3), 0).take_seed(SLOT)


# --- what keys must be ---


def test_keys_that_fall_are_refused() -> None:
    n = 4096
    sparse = np.zeros(n, np.int8)
    sparse[:: n // 64] = 1
    rng = np.random.default_rng(1)
    for own in (
        np.zeros(n, np.int8),
        sparse,  # ternary, of Hamming weight 64: the paper's
        rng.integers(-1, 2, n).astype(np.int8),
        np.clip(draw_own(n), -4, 4),
        2 * np.clip(draw_own(n), -20, 20),
    ):
        with pytest.raises(ProtocolError, match="too small, too few or too large"):
            check_own(own)
    with pytest.raises(ProtocolError, match="beyond 9 sigma"):
        check_own(np.where(np.arange(n) == 5, 41, draw_own(n)).astype(np.int8))
    for _ in range(20):
        check_own(draw_own(n))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([2, 3, 10, 50, 1000]), st.integers(0, 2**32 - 1))
def test_keys_as_field_elements_add_up(cohort: int, seed: int) -> None:
    n, bound = 4096, Gaussian().bound
    rng = np.random.default_rng(seed)
    count = min(cohort, 12)
    owns = [rng.integers(-bound, bound + 1, n).astype(np.int8) for _ in range(count)]
    owns[0][:] = -bound
    elements = [eshe_keys.to_elements(own, cohort) for own in owns]
    assert elements[0].shape == (eshe_keys.elements(n, cohort),)
    assert max(int(e.max()) for e in elements) < Q
    total = functools.reduce(add, elements)
    opened = eshe_keys.from_elements(total, n, cohort)
    assert opened.tolist() == np.array(owns, np.int32).sum(axis=0).tolist()


def test_elements_hold_as_many_coefficients_as_sums_have_room_for() -> None:
    assert [eshe_keys.elements(4096, n) for n in (3, 10, 100, 1000)] == [586, 683, 1024, 1366]
    for cohort in (2, 1024):  # all members at the border
        owns = [np.full(4096, -40, np.int8)] * cohort
        one = eshe_keys.to_elements(owns[0], cohort)
        total = functools.reduce(add, [one] * cohort)
        assert set(eshe_keys.from_elements(total, 4096, cohort).tolist()) == {-40 * cohort}


# --- sizes ---


@pytest.mark.parametrize(
    ("ring", "cohort", "slots", "bits"),
    [
        ("goldilocks-4096", 16, 2, 32.0),
        ("goldilocks-4096", 100, 2, 32.0),
        ("goldilocks-4096", 1000, 2, 32.0),
        ("rns-4096", 16, 4, 22.5),
        ("rns-8192", 16, 9, 21.0),
        ("rns-8192", 100, 7, 24.43),
        ("rns-16384", 16, 16, 20.63),
        ("rns-16384", 1000, 12, 27.0),
    ],
)
def test_bits_a_value(ring: str, cohort: int, slots: int, bits: float) -> None:
    sizes = Eshe(cohort, 16, ring).sizes
    assert sizes.slots.per == slots
    assert sizes.value_bits == pytest.approx(bits, abs=0.01)


def test_bits_that_cost_nothing() -> None:
    assert [Eshe(n, 0).bits for n in (3, 10, 100, 1000)] == [16, 24, 20, 16]
    for ring in ESHE:
        for cohort in (3, 10, 1000):
            free, usual = Eshe(cohort, 0, ring), Eshe(cohort, 16, ring)
            assert free.bits >= 16
            assert free.nbytes(100_000) <= usual.nbytes(100_000)
            assert Eshe(cohort, free.bits, ring) == free


def test_presets_below_the_bar_are_refused() -> None:
    with pytest.raises(ConfigError, match="100 bits of security, 128 are needed"):
        EshePreset("x", 4096, 104, 100, "somebody")
    with pytest.raises(ConfigError, match="power of two from 4096"):
        EshePreset("x", 2048, 104, 128, "somebody")
    with pytest.raises(ConfigError, match="64 for Goldilocks"):
        EshePreset("x", 4096, 60, 128, "somebody", goldilocks=True)
    with pytest.raises(ConfigError, match="ESHE has goldilocks-4096"):
        Eshe(3, ring="bfv")
    assert presets.BAR == 128
    assert all(preset.security >= 128 for preset in ESHE.values())


def test_parameters_that_cannot_work() -> None:
    sizes = Eshe(3).sizes
    with pytest.raises(ConfigError, match="not 1 modulo 16384"):
        dataclasses.replace(Eshe(3, ring="rns-4096").sizes, n=8192)
    with pytest.raises(ConfigError, match="longer than 60 bits"):
        Rlwe(sizes.n, 60, sizes.slots)
    with pytest.raises(ConfigError, match="does not fit log q = 49"):
        rlwe_for(EshePreset("x", 4096, 49, 128, "somebody"), 1024, 32)
    for total in (np.zeros(4096, np.int64), np.zeros((2, 2), np.int32)):
        with pytest.raises(ProtocolError, match="of another shape"):
            check_total(total, 3)
    assert repr(keys(3, 4096)[1]) == "EsheKey()"


# --- what a server refuses ---


@pytest.mark.parametrize("ring", ["goldilocks-4096", "rns-8192"])
def test_what_is_refused_leaves_the_total_alone(ring: str) -> None:
    """Also where it is the last residue of the last limb that is wrong."""
    scheme = Eshe(3, 16, ring)
    xs = vectors(scheme, (2 * PIECE + 5) * scheme.sizes.slots.per)
    total = summed(scheme, xs, [0, 1])
    before = total.data.copy()
    bad = sealer(scheme, 2).encrypt(Plain(xs[2], NOTHING), SLOT)
    bad.data[-24:-1] = 255
    with pytest.raises(ProtocolError, match="not below its modulus"):
        scheme.add(total, bad)
    assert np.array_equal(total.data, before)
    total = scheme.add(total, sealer(scheme, 2).encrypt(Plain(xs[2], NOTHING), SLOT))
    assert opener(scheme).decrypt(total).tolist() == np.sum(xs, axis=0).tolist()
    total.data[-24:-1] = 255
    with pytest.raises(ProtocolError, match="not below its modulus"):
        opener(scheme).decrypt(total)


# --- the shape of work ---


@pytest.mark.parametrize("ring", ["goldilocks-4096", "rns-8192", "paper-32768"])
def test_lengths_around_the_borders_of_pieces(ring: str) -> None:
    scheme = Eshe(2, 16, ring)
    per = scheme.sizes.slots.per
    step = max(PIECE, scheme.sizes.n) * per
    for length in (0, 1, per, step - 1, step, step + 1, 2 * step + per + 1):
        xs = vectors(scheme, length)
        got = [
            sealer(scheme, r, threads=1 + r).encrypt(
                Plain(x[: length // 2], x[length // 2 :]), SLOT
            )
            for r, x in enumerate(xs)
        ]
        total = scheme.add(scheme.add(None, got[0]), got[1])
        opened = opener(scheme, threads=2).decrypt(total)
        assert opened.tolist() == (xs[0].astype(np.int64) + xs[1]).tolist()


def test_errors_come_from_the_source_that_is_given() -> None:
    asked: list[int] = []

    def source(count: int) -> bytes:
        asked.append(count)
        return secrets.token_bytes(count)

    sealer(Eshe(3), 0, random=source).encrypt(Plain(np.zeros(9, np.int32), NOTHING), SLOT)
    assert asked == [32]
    EsheSealer(Eshe(3, keys="round"), KEY, 0, random=source).prepare(SLOT, 9)
    assert asked == [32, 32, 32]  # a fresh key, and the errors

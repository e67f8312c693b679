"""FedML-HE's CKKS: exact sums, TenSEAL as the other side, masks, and what must never open."""

from __future__ import annotations

import dataclasses
import secrets
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.errors import ConfigError, ProtocolError
from flhe.schemes.fedml_he.adder import Dither, FedmlHeAdder, FedmlHeOpener, FedmlHeSealer
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.fedml_he.sizes import ROOM, CkksSizes
from flhe.schemes.polynomial_masks import PolynomialMasks, lifted
from flhe.schemes.presets import SEAL
from flhe.schemes.seal_blocks import SealBlocks
from flhe.schemes.seal_format import to_seal_order
from flhe.schemes.seal_keys import SealPublic, SealSecret
from flhe.schemes.seal_sizes import LARGEST, sizes_for
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT, whole

RING = "2048"


KEYS = {(number, ring): SealSecret.generate(ring) for number in (0, 1) for ring in SEAL}


def key(number: int = 0, ring: str = RING) -> SealSecret:
    return KEYS[number, ring]


def scheme_for(cohort: int, bits: int = 16, ring: str = RING) -> FedmlHeAdder:
    plain = FedmlHe(ring=ring).adder(cohort, bits)
    return dataclasses.replace(plain, public=key(0, ring).public)


def part(scheme: FedmlHeAdder, rank: int, values: Any, extras: Any = ()) -> Sealed:
    sealer = FedmlHeSealer(scheme, key(0, scheme.scheme.ring), KEY, rank)
    return sealer.encrypt(Plain(values, np.array(extras, np.int32)), SLOT)


def total_of(scheme: FedmlHeAdder, vectors: Iterable[Any], extras: Any = ()) -> Sealed:
    total = None
    for rank, values in enumerate(vectors):
        total = scheme.add(total, part(scheme, rank, values, extras))
    assert total is not None
    return total


def opener(scheme: FedmlHeAdder) -> FedmlHeOpener:
    return FedmlHeOpener(scheme, key(0, scheme.scheme.ring), KEY)


# --- sums ---


@pytest.mark.parametrize(
    ("cohort", "bits", "ring"),
    [
        *((2, 16, "2048"), (10, 16, "4096"), (3, 8, "8192"), (50, 16, "4096"), (3, 24, "2048")),
        *(pytest.param(n, 16, "4096", marks=pytest.mark.sweep) for n in range(3, 50)),
    ],
)
def test_sums_are_exact_and_the_noise_is_within_the_proof(
    cohort: int, bits: int, ring: str
) -> None:
    """Extremes in half of the slots; values, extras, and a last block that is part empty."""
    scheme, rng = scheme_for(cohort, bits, ring), np.random.default_rng(cohort)
    bound, length = scheme.space.bound, scheme.sizes.block + 5
    vectors = rng.integers(-bound, bound + 1, (cohort, length)).astype(np.int32)
    vectors[:, : length // 4], vectors[:, length // 4 : length // 2] = bound, -bound
    extras = np.array([bound, -1, 0])
    total = total_of(scheme, vectors, extras)
    expected = np.concatenate([vectors.sum(axis=0), cohort * extras])
    assert opener(scheme).decrypt(total).tolist() == expected.tolist()
    assert scheme.sizes.residual(cohort) < ROOM


# --- sizes: the proof, in integers ---


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SEAL)), st.integers(2, 1024), st.integers(2, 32))
def test_no_coefficient_wraps_and_no_slot_is_off(ring: str, cohort: int, bits: int) -> None:
    try:
        sizes = sizes_for(CkksSizes, SEAL[ring], cohort, bits)
    except ConfigError:
        assert bits > 16
        return
    bound = 2 ** (bits - 1) - 1
    slot = sum(bound * 2 ** (sizes.digits.width * k) for k in range(sizes.digits.per))
    worst = cohort * (slot * 2**sizes.scale_bits) + cohort * int(LARGEST + 1)
    assert 2 * worst < sizes.q
    assert cohort * slot < 2**52
    assert 10 * np.sqrt(cohort * 11 * sizes.n / 2) / 2**sizes.scale_bits < ROOM
    for sign in (1, -1):
        values = np.full(2 * sizes.digits.per, sign * bound, np.int64)
        values[::3] = -sign * bound
        joined = sizes.digits.join(values)
        assert max(abs(int(v)) for v in joined) <= sizes.digits.largest
        digits, fits = sizes.digits.split(cohort * joined, cohort)
        assert fits
        assert digits.tolist() == (cohort * values).tolist()
        assert not sizes.digits.split(cohort * joined + sign, cohort - 1)[1]


def test_errors_are_as_wide_as_the_proof_takes_them_to_be() -> None:
    """SEAL's error and the rounding, in 120 ciphertexts: within a tenth of the proof's variance."""
    scheme = scheme_for(2)
    sizes, count = scheme.sizes, 120
    values = np.random.default_rng(8).integers(-9, 10, count * sizes.block).astype(np.int32)
    sealed = part(scheme, 0, values)
    c = np.empty((count, sizes.n), np.uint64)
    for _, at, end in sizes.limbs.pieces(c.size):
        sizes.limbs.read(sealed.data, c.size, 0, at, c.reshape(-1)[at:end])
    a = PolynomialMasks.of(sizes.ring, "ckks-a", KEY, SLOT, (0,)).blocks(0, count)
    slots = SealBlocks.of(sizes, key()).decrypt(c, a)
    assert np.rint(slots).tolist() == sizes.digits.join(values.astype(np.int64)).tolist()
    assert 0.9 < np.var(slots - np.rint(slots)) / sizes.sigma(1) ** 2 < 1.1


def test_equal_vectors_of_a_thousand_senders_are_summed() -> None:
    """Their roundings, which dither makes differ, would add up to more than the proof has room for."""
    cohort = 1024
    scheme = scheme_for(cohort)
    bound = scheme.space.bound
    values = np.random.default_rng(1).integers(-bound, bound + 1, 1000).astype(np.int32)
    sealer, total = FedmlHeSealer(scheme, key(), KEY, 0), None
    for rank in range(cohort):
        sealer.rank = rank
        sealer._used.clear()
        total = scheme.add(total, sealer.encrypt(whole(values), SLOT))
    assert total is not None
    assert opener(scheme).decrypt(total).tolist() == (cohort * values.astype(np.int64)).tolist()


# --- dither ---


def cosines(n: int) -> np.ndarray:
    """What slots weigh coefficients with, (n / 2, n)."""
    powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)])
    return np.cos(np.outer(powers, np.arange(n)) % (2 * n) * (np.pi / n))


def coefficients(sizes: CkksSizes, slots: np.ndarray) -> np.ndarray:
    """Of polynomials with these real slots: (blocks, n), before rounding; by definition."""
    return slots.reshape(-1, sizes.n // 2) @ cosines(sizes.n) * (2 * sizes.scale / sizes.n)


def test_dither_is_uniform_and_never_the_same_twice() -> None:
    sizes = FedmlHe(ring=RING).adder(2).sizes
    first = Dither.of(sizes, secrets.token_bytes)
    again = Dither.of(sizes, secrets.token_bytes)
    slots = [first.blocks(0, 3), again.blocks(0, 3)]
    assert np.array_equal(slots[0][sizes.n // 2 :], first.blocks(1, 2))
    d, half = np.concatenate([coefficients(sizes, s) for s in slots]), sizes.n // 2
    assert np.abs(d[:, half]).max() < 1e-9
    assert np.allclose(d[:, :half:-1], -d[:, 1:half], atol=1e-9)
    own = d[:, :half]
    assert np.abs(own).max() <= 0.5
    counts = np.histogram(own, 16, (-0.5, 0.5))[0]
    expected = own.size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 15 + 9 * np.sqrt(30)
    common = np.corrcoef(own) - np.eye(len(own))
    assert np.abs(common).max() < 7 / np.sqrt(half)
    assert repr(first) == f"Dither(sizes={sizes!r})"
    with pytest.raises(ConfigError, match="gave 31 bytes, 32"):
        Dither.of(sizes, lambda n: bytes(n - 1))


def test_dither_takes_roundings_off_the_cosines() -> None:
    """One value and else zeros: alone its roundings add up in some slot, with dither they do not."""
    sizes, repeats = FedmlHe(ring=RING).adder(2).sizes, 200
    slots = np.zeros((60, sizes.n // 2))
    slots[:, 0] = np.arange(1, 61)
    exact, weights = coefficients(sizes, slots), cosines(sizes.n)
    alone = np.abs((np.rint(exact) - exact) @ weights.T)
    value, at = np.unravel_index(alone.argmax(), alone.shape)
    dither = Dither.of(sizes, secrets.token_bytes).blocks(0, repeats)
    d = coefficients(sizes, dither)
    dithered = (np.rint(exact[value] + d) - exact[value]) @ weights[at]
    deviation = np.sqrt(sizes.n / 4)  # of what `sizes.sigma` rests on
    assert alone.max() > 5 * deviation
    assert abs(dithered.mean()) < 7 * deviation / np.sqrt(repeats)
    assert np.abs(dithered).max() < 7 * deviation


# --- refusals ---


def test_a_key_is_the_one_that_the_public_part_names() -> None:
    scheme = scheme_for(3)
    total = total_of(scheme, [np.ones(9, np.int32)])
    with pytest.raises(ProtocolError, match="not the sum of what its senders encrypted"):
        FedmlHeOpener(dataclasses.replace(scheme, public=None), key(1), KEY).decrypt(total)
    with pytest.raises(ConfigError, match="not the one that the public part names"):
        FedmlHeOpener(scheme, key(1), KEY)
    with pytest.raises(ConfigError, match="of ring '4096'"):
        FedmlHeSealer(scheme, key(0, "4096"), KEY, 0)


def with_added(scheme: FedmlHeAdder, total: Sealed, slot: int, steps: float) -> Sealed:
    """What a relay can do: add a number to a slot of the first block, with public parameters only."""
    sizes = scheme.sizes
    angles = pow(3, slot, 2 * sizes.n) * np.arange(sizes.n) % (2 * sizes.n) * (np.pi / sizes.n)
    polynomial = np.rint(np.cos(angles) * (2 * sizes.scale / sizes.n * steps)).astype(np.int64)
    residues = np.empty(sizes.n, np.uint64)
    data, count = total.data.copy(), sizes.count(total.length)
    sizes.limbs.read(data, count, 0, 0, residues)
    added = sizes.ring.forward(lifted(polynomial, sizes.q))[to_seal_order(sizes.ring)]
    sizes.limbs.write(sizes.ring.add(residues, added), data, count, 0, 0)
    return dataclasses.replace(total, data=data)


def test_each_sign_that_a_sum_was_altered_is_enough() -> None:
    """Behind the values; beyond what senders reach; off the grid: one of them at a time."""
    scheme = scheme_for(3)
    sizes, bound = scheme.sizes, scheme.space.bound
    assert sizes.digits.per == 2
    total = total_of(scheme, [np.arange(20, dtype=np.int32)] * 3)
    seen = opener(scheme)

    def looked_at(changed: Sealed) -> tuple[bool, bool, bool]:
        masks = PolynomialMasks.of(sizes.ring, "ckks-a", KEY, SLOT, changed.senders)
        slots, near = seen._slots(seen._opened(changed, masks, 0, sizes.count(changed.length)), 3)
        values, fits = sizes.digits.split(slots, 3)
        return bool(values[20:].any()), not fits, not near

    upper = 1 << sizes.digits.width
    for at, steps, signs in (
        (sizes.n // 2 - 1, 1, (True, False, False)),
        (10, -upper, (True, False, False)),
        (2, (3 * bound + 1) * upper, (False, True, False)),
        (2, -(3 * bound + 1) * upper - 15 * upper, (False, True, False)),
        (4, 0.45, (False, False, True)),
        (4, -0.45, (False, False, True)),
    ):
        changed = with_added(scheme, total, at, steps)
        assert looked_at(changed) == signs
        with pytest.raises(ProtocolError, match="not the sum of what its senders encrypted"):
            seen.decrypt(changed)
    # The limit of few senders is theirs, not the cohort's.
    large = scheme_for(50, 16, "4096")
    lone = part(large, 0, np.arange(20, dtype=np.int32))
    off = 1.5 * large.sizes.residual(1)
    assert off < large.sizes.residual(50)
    with pytest.raises(ProtocolError, match="not the sum"):
        opener(large).decrypt(with_added(large, lone, 2, off))
    # What a relay adds that is a step, within reach: nothing but tags would tell.
    shifted = seen.decrypt(with_added(scheme, total, 1, 5))
    assert shifted.tolist() == [3 * x + 5 * (x == 2) for x in range(20)]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 4095), st.integers(1, 2**40))
def test_one_residue_that_was_changed_is_seen(at: int, by: int) -> None:
    scheme = scheme_for(2)
    sizes, total = scheme.sizes, total_of(scheme, [np.arange(3000, dtype=np.int32)])
    count = sizes.count(3000)
    residues = np.empty(count, np.uint64)
    sizes.limbs.read(total.data, count, 0, 0, residues)
    residues[at % count] = (int(residues[at % count]) + by) % sizes.q
    sizes.limbs.write(residues, total.data, count, 0, 0)
    with pytest.raises(ProtocolError, match="not the sum"):
        opener(scheme).decrypt(total)


def test_what_is_no_ciphertext_is_refused_and_its_sender_named() -> None:
    scheme = scheme_for(3)
    good, total = part(scheme, 1, np.ones(9, np.int32)), part(scheme, 0, np.ones(9, np.int32))
    before, beyond = total.data.copy(), good.data.copy()
    beyond[:8] = 255
    with pytest.raises(ProtocolError, match="sender 1: a residue is not below"):
        scheme.add(total, dataclasses.replace(good, data=beyond))
    assert np.array_equal(total.data, before)
    with pytest.raises(ProtocolError, match="the round is refused"):
        opener(scheme).decrypt(dataclasses.replace(good, data=beyond))


def test_the_server_needs_no_tenseal(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = scheme_for(2)
    parts = [part(scheme, rank, np.ones(9, np.int32)) for rank in range(2)]
    assert scheme.public is not None
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tenseal", None)
        told = dataclasses.replace(scheme, public=SealPublic.from_bytes(scheme.public.to_bytes()))
        total = told.add(told.add(None, parts[0]), parts[1])
        with pytest.raises(ConfigError, match=r"\[ckks\] extra"):
            opener(scheme)
    assert opener(scheme).decrypt(total).tolist() == [2] * 9

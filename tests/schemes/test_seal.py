"""Schemes that TenSEAL encrypts: exact sums, noise, what must never open; keys, TenSEAL's encodings."""

from __future__ import annotations

import dataclasses
import secrets
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tenseal as ts
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.errors import ConfigError, NoKeyError, ProtocolError
from flhe.math.ring import lifted
from flhe.schemes.base import Secrets
from flhe.schemes.bfv.adder import BfvSizes
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.fedml_he.adder import FLOATS, ROOM, CkksSizes, Dither
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.presets import SEAL, SealScheme
from flhe.schemes.seal_adder import PolynomialMasks, SealAdder, SealOpener
from flhe.schemes.seal_blocks import SealBlocks
from flhe.schemes.seal_format import SealFormat, to_seal_order
from flhe.schemes.seal_keys import SealPublic, SealSecret, pack
from flhe.schemes.seal_sizes import LARGEST, sizes_for
from flhe.schemes.sealed import Sealed
from flhe.wire import canonical
from tests.laws import KEY, SLOT, sum_of

CKKS = FedmlHe(ring="2048")


KEYS = {(ring, number): SealSecret.generate(ring) for number in (0, 1) for ring in SEAL}


def key(ring: str, number: int = 0) -> SealSecret:
    return KEYS[ring, number]


def adder_of(scheme: SealScheme, cohort: int, bits: int = 16) -> SealAdder:
    made: SealAdder = scheme.adder(cohort, bits, key(scheme.ring).public.to_bytes())
    return made


def member(ring: str, rank: int = 0, number: int = 0) -> Secrets:
    return Secrets(KEY, rank, key(ring, number).to_bytes())


def part(adder: SealAdder, rank: int, values: Any, extras: Any = ()) -> Sealed:
    sealer = adder.sealer(member(adder.scheme.ring, rank))
    return sealer.encrypt(Plain(values, np.array(extras, np.int32)), SLOT)


def total_of(adder: SealAdder, vectors: Iterable[Any], extras: Any = ()) -> Sealed:
    return sum_of(adder, (part(adder, rank, x, extras) for rank, x in enumerate(vectors)))


def opener(adder: SealAdder) -> SealOpener:
    return adder.opener(member(adder.scheme.ring))


# --- sums ---


@pytest.mark.parametrize(
    ("scheme", "cohort", "bits"),
    [
        *((Bfv(), 2, 2), (Bfv("8192"), 5, 24), (Bfv(), 3, 32), (CKKS, 2, 16), (CKKS, 3, 24)),
        *((FedmlHe(), 10, 16), (FedmlHe("8192"), 3, 8), (FedmlHe(), 50, 16)),
        *(pytest.param(FedmlHe(), n, 16, marks=pytest.mark.sweep) for n in range(3, 50)),
    ],
    ids=str,
)
def test_sums_at_the_borders_are_exact(scheme: SealScheme, cohort: int, bits: int) -> None:
    """Extremes in half of the slots; values, extras, and a last block that is part empty."""
    adder, rng = adder_of(scheme, cohort, bits), np.random.default_rng(cohort)
    bound, length = adder.space.bound, adder.sizes.block + 5
    vectors = rng.integers(-bound, bound + 1, (cohort, length)).astype(np.int32)
    vectors[:, : length // 4], vectors[:, length // 4 : length // 2] = bound, -bound
    extras = np.array([bound, -1, 0])
    found = opener(adder).decrypt(total_of(adder, vectors, extras))
    expected = np.concatenate([vectors.sum(axis=0, dtype=np.int64), cohort * extras])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("scheme", [Bfv(), CKKS], ids=str)
def test_equal_vectors_of_a_thousand_senders_are_summed(scheme: SealScheme) -> None:
    """BFV's roundings are alike; CKKS's would add up to more than the proof has room for: dither."""
    cohort, total = 1024, None
    adder = adder_of(scheme, cohort)
    bound = adder.space.bound
    values = np.random.default_rng(1).integers(-bound, bound + 1, 1000).astype(np.int32)
    sealer = adder.sealer(member(scheme.ring))
    for rank in range(cohort):
        sealer.rank = rank
        sealer._used.clear()
        total = adder.add(total, sealer.encrypt(Plain(values, values[:0]), SLOT))
    assert total is not None
    assert np.array_equal(opener(adder).decrypt(total), cohort * values.astype(np.int64))


# --- sizes and errors: the proofs ---


@pytest.mark.parametrize("cohort", [2, 3, 10, 100, 1024])
@pytest.mark.parametrize("bits", [2, 8, 16, 20])
def test_bfv_leaves_the_room_that_the_proof_asks_for(cohort: int, bits: int) -> None:
    sizes = sizes_for(BfvSizes, Bfv.RINGS["4096"], cohort, bits)
    assert sizes.t > 4 * cohort * sizes.digits.largest
    assert sizes.q // sizes.t > 4 * cohort * LARGEST
    assert sizes.q.bit_length() == sizes.bits <= 60
    assert sizes.t % (2 * sizes.n) == sizes.q % (2 * sizes.n) == 1


def test_bfvs_errors_are_no_larger_than_the_proof_takes_them_to_be() -> None:
    """A ciphertext of zeros is its error: |e| <= 21 in each coefficient."""
    sizes = sizes_for(BfvSizes, Bfv.RINGS["4096"], 2, 16)
    blocks, zero = SealBlocks.of(sizes, key("4096")), np.zeros((1, sizes.n), np.uint64)
    for _ in range(5):
        c = blocks.encrypt(np.zeros(sizes.n, np.int64), zero)[0]
        signed = np.where(c > sizes.q // 2, c.astype(np.int64) - sizes.q, c.astype(np.int64))
        assert 5 < np.abs(signed).max() <= LARGEST - 1


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
    scheme = adder_of(CKKS, 2)
    sizes, count = scheme.sizes, 120
    values = np.random.default_rng(8).integers(-9, 10, count * sizes.block).astype(np.int32)
    sealed = part(scheme, 0, values)
    c = np.empty((count, sizes.n), np.uint64)
    for _, at, end in sizes.limbs.pieces(c.size):
        sizes.limbs.read(sealed.data, c.size, 0, at, c.reshape(-1)[at:end])
    a = PolynomialMasks.of(sizes.ring, "ckks-a", KEY, SLOT, (0,)).blocks(0, count)
    slots = SealBlocks.of(sizes, key("2048")).decrypt(c, a)
    assert np.rint(slots).tolist() == sizes.digits.join(values.astype(np.int64)).tolist()
    assert 0.9 < np.var(slots - np.rint(slots)) / sizes.sigma(1) ** 2 < 1.1


# --- dither ---


def cosines(n: int) -> np.ndarray:
    """What slots weigh coefficients with, (n / 2, n)."""
    powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)])
    return np.cos(np.outer(powers, np.arange(n)) % (2 * n) * (np.pi / n))


def coefficients(sizes: CkksSizes, slots: np.ndarray) -> np.ndarray:
    """Of polynomials with these real slots: (blocks, n), before rounding; by definition."""
    return slots.reshape(-1, sizes.n // 2) @ cosines(sizes.n) * (2 * sizes.scale / sizes.n)


def test_dither_is_uniform_and_never_the_same_twice() -> None:
    sizes = CKKS.adder(2).sizes
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


# --- refusals ---


def with_added(scheme: SealAdder, total: Sealed, slot: int, steps: float) -> Sealed:
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
    scheme = adder_of(CKKS, 3)
    sizes, bound = scheme.sizes, scheme.space.bound
    assert sizes.digits.per == 2
    total = total_of(scheme, [np.arange(20, dtype=np.int32)] * 3)
    seen = opener(scheme)

    def looked_at(changed: Sealed) -> tuple[bool, bool, bool]:
        masks = PolynomialMasks.of(sizes.ring, "ckks-a", KEY, SLOT, changed.senders)
        slots, near = sizes.slots(seen._opened(changed, masks, 0, sizes.count(changed.length)), 3)
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
    large = adder_of(FedmlHe(), 50)
    lone = part(large, 0, np.arange(20, dtype=np.int32))
    off = 1.5 * large.sizes.residual(1)
    assert off < large.sizes.residual(50)
    with pytest.raises(ProtocolError, match="not the sum"):
        opener(large).decrypt(with_added(large, lone, 2, off))
    # What a relay adds that is a step, within reach: nothing but tags would tell.
    shifted = seen.decrypt(with_added(scheme, total, 1, 5))
    assert shifted.tolist() == [3 * x + 5 * (x == 2) for x in range(20)]


def test_what_is_no_ciphertext_is_refused_and_its_sender_named() -> None:
    scheme = adder_of(CKKS, 3)
    good, total = part(scheme, 1, np.ones(9, np.int32)), part(scheme, 0, np.ones(9, np.int32))
    before, beyond = total.data.copy(), good.data.copy()
    beyond[:8] = 255
    with pytest.raises(ProtocolError, match="sender 1: a residue is not below"):
        scheme.add(total, dataclasses.replace(good, data=beyond))
    assert np.array_equal(total.data, before)
    with pytest.raises(ProtocolError, match="the round is refused"):
        opener(scheme).decrypt(dataclasses.replace(good, data=beyond))


def test_the_server_needs_no_tenseal(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = adder_of(CKKS, 2)
    parts = [part(scheme, rank, np.ones(9, np.int32)) for rank in range(2)]
    assert scheme.public is not None
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tenseal", None)
        told = dataclasses.replace(scheme, public=SealPublic.from_bytes(scheme.public.to_bytes()))
        total = told.add(told.add(None, parts[0]), parts[1])
        with pytest.raises(ConfigError, match=r"\[ckks\] extra"):
            opener(scheme)
    assert opener(scheme).decrypt(total).tolist() == [2] * 9


# --- TenSEAL as the other side ---


@pytest.mark.parametrize("n", [4096, 8192])
def test_transforms_in_double_precision_are_as_exact_as_the_proof_takes_them_to_be(n: int) -> None:
    """Of values near 2^52, where TenSEAL's modulus is so long that encryption adds no error."""
    bits, scale = ([36, 36, 36], 2.0**16) if n == 4096 else ([60, 60, 60], 2.0**50)
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, n, coeff_mod_bit_sizes=bits, n_threads=1,
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
    )  # fmt: skip
    largest, rng = 2.0**52, np.random.default_rng(n)
    slots = n // 2
    for values in (
        rng.integers(-(2**52), 2**52, slots).astype(float),
        rng.choice([-largest, largest], slots),
        np.full(slots, largest),
        np.where(np.arange(slots) == 1, largest, 0),
    ):
        opened = ts.ckks_vector(context, values.tolist(), scale).decrypt()
        assert np.abs(np.array(opened) - values).max() < FLOATS * largest


def test_other_versions_of_tenseal_are_named() -> None:
    blocks, zstd = SealBlocks.of(CKKS.adder(2).sizes, key("2048")), zstandard.ZstdDecompressor()
    fresh = blocks._vector[0](blocks.context.data, [0.0] * 1024, blocks.scale).serialize()
    start = fresh.index(b"\x5e\xa1")
    older = fresh[: start + 3] + b"\x03" + fresh[start + 4 :]
    blocks.seal.polynomials(fresh, zstd)
    for seal, data in ((blocks.seal, older), (SealFormat(2048, CKKS.adder(2, 8).sizes.q), fresh)):
        with pytest.raises(ConfigError, match=r"install tenseal 0\.3\.18"):
            seal.polynomials(data, zstd)


# --- keys ---


def test_the_public_part_names_a_key_and_holds_none() -> None:
    one, other = key("4096"), key("4096", 1)
    data = one.public.to_bytes()
    assert SealPublic.from_bytes(data) == one.public != other.public
    more = canonical.loads(data, 200, "public") | {"coefficients": pack(one.coefficients)}
    for wrong in (one.to_bytes(), canonical.dumps(more)):
        with pytest.raises(ProtocolError, match="seal-public"):
            FedmlHe().adder(2, public=wrong)


def test_coefficients_are_equally_likely() -> None:
    """No byte value is taken that would favour one: 255 of 256 are, 85 for each."""
    bytes_, asked = bytes(range(256)) * 8, iter(range(9))

    def source(n: int) -> bytes:
        next(asked)
        return bytes_[:n]

    drawn = SealSecret.generate("2048", source).coefficients[: 255 * 8]
    assert np.bincount(drawn + 1).tolist() == [680, 680, 680]


def test_keys_that_nobody_drew_are_refused() -> None:
    for coefficients in (np.zeros(4096, np.int8), np.ones(4096, np.int8)):
        with pytest.raises(ProtocolError, match="not random"):
            SealSecret("4096", coefficients).check("4096")
    for off, drawn in ((295, True), (303, False)):  # ten standard deviations are 301.7
        coefficients = np.repeat(np.array([-1, 0, 1], np.int8), [1365 + off, 1365, 1366 - off])
        with nullcontext() if drawn else pytest.raises(ProtocolError, match="not random"):
            SealSecret("4096", coefficients).check("4096")
    for wrong in (np.full(4096, 2, np.int8), np.zeros(2048, np.int8), np.zeros(4096, np.int16)):
        with pytest.raises(ProtocolError, match="-1, 0 or 1"):
            SealSecret("4096", wrong)


def test_pairs_that_are_not_sound_are_refused() -> None:
    adder, own = adder_of(Bfv(), 3), key("4096")
    adder.check_pair(own.public.to_bytes(), own.to_bytes())
    for public, secret, says in (
        (own.public, key("4096", 1), "does not belong"),
        (key("8192").public, key("8192"), "of ring '8192'"),
    ):
        with pytest.raises(ProtocolError, match=says):
            adder.check_pair(public.to_bytes(), secret.to_bytes())
    with pytest.raises(ProtocolError, match="of ring '8192'"):
        Bfv().adder(3, 16, SealPublic("8192", bytes(32)).to_bytes())
    for ring, number in (("4096", 1), ("8192", 0)):
        for role in (adder.sealer, adder.opener):
            with pytest.raises(ConfigError, match="does not belong"):
                role(member(ring, 0, number))
    with pytest.raises(NoKeyError):
        adder.sealer(Secrets(KEY, 0))

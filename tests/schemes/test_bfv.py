"""BFV beyond the laws: exact sums at the borders, noise within its bounds, keys, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.errors import ConfigError, NoKeyError, ProtocolError
from flhe.schemes.base import Secrets
from flhe.schemes.bfv.adder import BfvAdder, BfvSizes
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.seal_blocks import SealBlocks
from flhe.schemes.seal_keys import SealPublic, SealSecret
from flhe.schemes.seal_sizes import LARGEST, sizes_for
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT, whole

SECRET = SealSecret.generate("4096")
SIZES = Bfv().adder(3).sizes


def adder_of(cohort: int = 3, bits: int = 16, secret: SealSecret = SECRET) -> BfvAdder:
    return Bfv(secret.ring).adder(cohort, bits, secret.public.to_bytes())


def member(rank: int = 0, secret: SealSecret = SECRET) -> Secrets:
    return Secrets(KEY, rank, secret.to_bytes())


def summed(adder: BfvAdder, vectors: NDArray[np.int32], secret: SealSecret = SECRET) -> Sealed:
    total = None
    for rank, values in enumerate(vectors):
        part = adder.sealer(member(rank, secret)).encrypt(whole(values), SLOT)
        total = adder.add(total, part)
    assert total is not None
    return total


@pytest.mark.parametrize(
    ("cohort", "bits", "ring"),
    [(2, 2, "4096"), (5, 24, "8192"), (3, 32, "4096")],
)
def test_sums_at_the_borders_are_exact(cohort: int, bits: int, ring: str) -> None:
    secret = SECRET if ring == "4096" else SealSecret.generate(ring)
    adder = adder_of(cohort, bits, secret)
    bound, length = adder.space.bound, adder.sizes.block + 5
    vectors = np.random.default_rng(bits).choice(
        np.array([-bound, -1, 0, 1, bound], np.int32), (cohort, length)
    )
    vectors[:, :3] = bound
    vectors[:, 3:6] = -bound
    found = adder.opener(member(0, secret)).decrypt(summed(adder, vectors, secret))
    assert np.array_equal(found, vectors.sum(axis=0, dtype=np.int64))


def test_equal_vectors_of_a_thousand_senders_are_summed() -> None:
    """Errors are fresh, but what rounds the scaled values is the same for all."""
    adder = adder_of(1024)
    values = np.full(50, adder.space.bound, np.int32)
    one = adder.sealer(member(0)).encrypt(whole(values), SLOT)
    words = np.frombuffer(one.data, np.uint8)
    total = adder.add(None, one)
    for rank in range(1, 1024):
        total = adder.add(total, dataclasses.replace(one, senders=(rank,), data=words))
    # The same ciphertext 1024 times: its mask too, so it is opened block by block.
    sizes, blocks = adder.sizes, SealBlocks.of(adder.sizes, SECRET)
    c = np.empty(sizes.count(50), np.uint64)
    sizes.limbs.read(total.data, c.size, 0, 0, c)
    a = PolynomialMasks.of(sizes.ring, BfvAdder.MASKS, KEY, SLOT, (0,)).blocks(0, 1)
    of_all = np.zeros_like(a)
    for _ in range(1024):
        sizes.ring.add(of_all, a, of_all)
    values_found, fits = sizes.digits.split(blocks.decrypt(c[None], of_all), 1024)
    assert fits
    assert np.array_equal(values_found[:50], 1024 * values.astype(np.int64))


@pytest.mark.parametrize("cohort", [2, 3, 10, 100, 1024])
@pytest.mark.parametrize("bits", [2, 8, 16, 20])
def test_sizes_leave_the_room_that_the_proof_asks_for(cohort: int, bits: int) -> None:
    sizes = sizes_for(BfvSizes, Bfv.RINGS["4096"], cohort, bits)
    most = cohort * sizes.digits.largest
    assert sizes.t > 4 * most
    assert sizes.q // sizes.t > 4 * cohort * LARGEST
    assert sizes.q.bit_length() == sizes.bits <= 60
    assert sizes.t % (2 * sizes.n) == sizes.q % (2 * sizes.n) == 1


def test_errors_are_no_larger_than_the_proof_takes_them_to_be() -> None:
    """A ciphertext of zeros is its error: |e| <= 21 in each coefficient."""
    sizes = sizes_for(BfvSizes, Bfv.RINGS["4096"], 2, 16)
    blocks, ring = SealBlocks.of(sizes, SECRET), sizes.ring
    zero = np.zeros((1, sizes.n), np.uint64)
    for _ in range(5):
        c = blocks.encrypt(np.zeros(sizes.n, np.int64), zero)[0]
        signed = np.where(c > sizes.q // 2, c.astype(np.int64) - sizes.q, c.astype(np.int64))
        assert 5 < np.abs(signed).max() <= LARGEST - 1
    assert ring.q == sizes.q


def test_a_sum_with_a_bit_flipped_is_refused_or_the_same() -> None:
    adder = adder_of()
    values = np.random.default_rng(2).integers(-9, 9, (3, 40)).astype(np.int32)
    total = summed(adder, values)
    for at in range(0, total.data.size, total.data.size // 40):
        data = total.data.copy()
        data[at] ^= 1 << at % 8
        try:  # less than the noise that is allowed for changes nothing
            found = adder.opener(member()).decrypt(dataclasses.replace(total, data=data))
        except ProtocolError:
            continue
        assert np.array_equal(found, values.sum(axis=0))


# --- keys ---


def test_pairs_that_are_not_sound_are_refused() -> None:
    adder, own = adder_of(), SECRET.to_bytes()
    adder.check_pair(SECRET.public.to_bytes(), own)
    zeros = SealSecret("4096", np.zeros(4096, np.int8))
    for public, secret, says in (
        (SECRET.public, SealSecret.generate("4096"), "does not belong"),
        (zeros.public, zeros, "not random"),
        (SealSecret.generate("8192").public, SealSecret.generate("8192"), "of ring '8192'"),
    ):
        with pytest.raises(ProtocolError, match=says):
            adder.check_pair(public.to_bytes(), secret.to_bytes())
    with pytest.raises(ProtocolError, match="of ring '8192'"):
        Bfv().adder(3, 16, SealPublic("8192", bytes(32)).to_bytes())
    with pytest.raises(ConfigError, match="not the one that the public part names"):
        adder.sealer(member(0, SealSecret.generate("4096")))
    with pytest.raises(ConfigError, match="of ring '8192'"):
        adder.sealer(member(0, SealSecret.generate("8192")))
    with pytest.raises(NoKeyError):
        adder.sealer(Secrets(KEY, 0))

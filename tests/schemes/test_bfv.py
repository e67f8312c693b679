"""BFV beyond the laws: exact sums at the borders, noise within its bounds, keys, refusals."""

from __future__ import annotations

import dataclasses
import secrets
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import ConfigError, NoKeyError, ProtocolError
from flhe.math.prg import AesCtr
from flhe.schemes.base import Secrets
from flhe.schemes.bfv.adder import BfvAdder, Blocks
from flhe.schemes.bfv.keys import BfvPublic, BfvSecret
from flhe.schemes.bfv.presets import RINGS
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.bfv.sizes import LARGEST, BfvSizes, sizes_for
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.sealed import Sealed
from flhe.wire.canonical import dumps, loads
from tests.laws import KEY, SLOT, whole

SECRET = BfvSecret.generate("4096")
SIZES = Bfv().adder(3).sizes


def adder_of(cohort: int = 3, bits: int = 16, secret: BfvSecret = SECRET) -> BfvAdder:
    return Bfv(secret.ring).adder(cohort, bits, secret.public(SIZES).to_bytes())


def member(rank: int = 0, secret: BfvSecret = SECRET) -> Secrets:
    return Secrets(KEY, rank, secret.to_bytes())


def summed(adder: BfvAdder, vectors: NDArray[np.int32], secret: BfvSecret = SECRET) -> Sealed:
    total = None
    for rank, values in enumerate(vectors):
        part = adder.sealer(member(rank, secret)).encrypt(whole(values), SLOT)
        total = adder.add(total, part)
    assert total is not None
    return total


@pytest.mark.parametrize(
    ("cohort", "bits", "ring"),
    [(2, 2, "4096"), (3, 16, "4096"), (5, 24, "8192"), (10, 16, "8192"), (3, 32, "4096")],
)
def test_sums_at_the_borders_are_exact(cohort: int, bits: int, ring: str) -> None:
    secret = SECRET if ring == "4096" else BfvSecret.generate(ring)
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
    sizes, blocks = adder.sizes, Blocks.of(adder.sizes, SECRET)
    c = np.empty(sizes.count(50), np.uint64)
    sizes.limbs.read(total.data, c.size, 0, 0, c)
    a = PolynomialMasks.of(sizes.ring, BfvAdder.MASKS, KEY, SLOT, (0,), AesCtr()).blocks(0, 1)
    of_all = np.zeros_like(a)
    for _ in range(1024):
        sizes.ring.add_into(of_all, a)
    values_found, fits = sizes.digits.split(blocks.decrypt(c[None], of_all), 1024)
    assert fits
    assert np.array_equal(values_found[:50], 1024 * values.astype(np.int64))


@pytest.mark.parametrize("cohort", [2, 3, 10, 100, 1024])
@pytest.mark.parametrize("bits", [2, 8, 16, 20])
def test_sizes_leave_the_room_that_the_proof_asks_for(cohort: int, bits: int) -> None:
    sizes = sizes_for(RINGS["4096"], cohort, bits)
    most = cohort * sizes.digits.largest
    assert sizes.t > 4 * most
    assert sizes.q // sizes.t > 4 * cohort * LARGEST
    assert sizes.q.bit_length() == sizes.bits <= 60
    assert sizes.t % (2 * sizes.n) == sizes.q % (2 * sizes.n) == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer bits or a smaller cohort"):
        Bfv().adder(1024, 32)
    with pytest.raises(ConfigError, match="BFV has 4096, 8192"):
        Bfv("2048")


def test_errors_are_no_larger_than_the_proof_takes_them_to_be() -> None:
    """A ciphertext of zeros is its error: |e| <= 21 in each coefficient."""
    sizes = sizes_for(RINGS["4096"], 2, 16)
    blocks, ring = Blocks.of(sizes, SECRET), sizes.ring
    zero = np.zeros((1, sizes.n), np.uint64)
    for _ in range(5):
        c = blocks.encrypt(np.zeros(sizes.n, np.int64), zero)[0]
        signed = np.where(c > sizes.q // 2, c.astype(np.int64) - sizes.q, c.astype(np.int64))
        assert 5 < np.abs(signed).max() <= LARGEST - 1
    assert ring.q == sizes.q


# --- what must never open ---


def refused(adder: BfvAdder, total: Sealed, own: Secrets | None = None) -> None:
    with pytest.raises(ProtocolError, match=r"not the sum of what its senders|below its modulus"):
        adder.opener(own or member()).decrypt(total)


def test_a_sum_that_is_not_its_senders() -> None:
    adder = adder_of()
    values = np.random.default_rng(2).integers(-9, 9, (3, 40)).astype(np.int32)
    total = summed(adder, values)
    refused(adder, dataclasses.replace(total, senders=(0, 1)))
    refused(adder, dataclasses.replace(total, slot=dataclasses.replace(SLOT, attempt=1)))
    refused(adder, total, Secrets(bytes(32), 0, SECRET.to_bytes()))
    other = BfvSecret.generate("4096")
    refused(adder_of(secret=other), total, member(0, other))
    for at in range(0, total.data.size, total.data.size // 40):
        data = total.data.copy()
        data[at] ^= 1 << at % 8
        try:  # less than the noise that is allowed for changes nothing
            found = adder.opener(member()).decrypt(dataclasses.replace(total, data=data))
        except ProtocolError:
            continue
        assert np.array_equal(found, values.sum(axis=0))


def test_a_residue_beyond_the_modulus_is_refused_and_its_sender_named() -> None:
    adder = adder_of()
    part = adder.sealer(member(1)).encrypt(whole(np.zeros(3, np.int32)), SLOT)
    data = np.full_like(part.data, 255)
    with pytest.raises(ProtocolError, match=r"the ciphertext of sender 1.*below its modulus"):
        adder.add(None, dataclasses.replace(part, data=data))


# --- keys ---


def test_keys_come_back_and_show_nothing() -> None:
    again = BfvSecret.from_bytes(SECRET.to_bytes())
    assert np.array_equal(again.coefficients, SECRET.coefficients)
    assert again.public(SIZES) == SECRET.public(SIZES) != BfvSecret.generate("4096").public(SIZES)
    assert repr(SECRET) == "BfvSecret(<4096 coefficients>)"
    shown = repr((adder_of().sealer(member()), adder_of().opener(member())))
    assert "array" not in shown
    assert KEY.hex() not in shown


BODY = loads(SECRET.to_bytes(), 1 << 14, "")


@pytest.mark.parametrize(
    "change",
    [
        {"ring": "2048"},
        {"ring": "8192"},
        {"coefficients": b""},
        {"coefficients": bytes(4097)},
        {"v": 2},
        {"x": 1},
    ],
    ids=str,
)
def test_malformed_keys_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        BfvSecret.from_bytes(dumps(BODY | change))


def test_pairs_that_are_not_sound_are_refused() -> None:
    adder, own = adder_of(), SECRET.to_bytes()
    adder.check_pair(SECRET.public(SIZES).to_bytes(), own)
    zeros = BfvSecret("4096", np.zeros(4096, np.int8))
    for public, secret, says in (
        (SECRET.public(SIZES), BfvSecret.generate("4096"), "does not belong"),
        (zeros.public(SIZES), zeros, "not random"),
        (BfvSecret.generate("8192").public(SIZES), BfvSecret.generate("8192"), "of ring '8192'"),
    ):
        with pytest.raises(ProtocolError, match=says):
            adder.check_pair(public.to_bytes(), secret.to_bytes())
    with pytest.raises(ProtocolError, match="of ring '8192'"):
        Bfv().adder(3, 16, BfvPublic("8192", bytes(32)).to_bytes())
    with pytest.raises(ConfigError, match="not the one that the public part names"):
        adder.sealer(member(0, BfvSecret.generate("4096")))
    with pytest.raises(NoKeyError):
        adder.sealer(Secrets(KEY, 0))


def test_a_fresh_pair_opens_what_it_sealed() -> None:
    public, secret = Bfv().adder(3).new_pair(secrets.token_bytes)
    adder = Bfv().adder(3, 16, public)
    plain = Plain(np.array([5, -7], np.int32), np.array([1], np.int64))
    sealed = adder.sealer(Secrets(KEY, 2, secret)).encrypt(plain, SLOT)
    assert adder.opener(Secrets(KEY, 0, secret)).decrypt(sealed).tolist() == [5, -7, 1]


def test_the_server_needs_no_tenseal() -> None:
    code = (
        "import sys\n"
        "sys.modules['tenseal'] = None\n"
        "from flhe.schemes.bfv.scheme import Bfv\n"
        "assert Bfv().needs.missing('server') == ()\n"
        "adder = Bfv().adder(3)\n"
        "print(adder.nbytes(10), 'tenseal' in [m for m in sys.modules if sys.modules[m]])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split()[1] == "False"


def test_the_largest_ring_is_whole() -> None:
    sizes = sizes_for(RINGS["8192"], 3, 16)
    assert isinstance(sizes, BfvSizes)
    assert sizes.block == 8192 * sizes.digits.per

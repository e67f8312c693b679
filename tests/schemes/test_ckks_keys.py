"""Keys of CKKS and SEAL's encodings: TenSEAL reads and writes the same; what a server gets."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tenseal as ts
import zstandard

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.roles import check_pair
from flhe.schemes.fedml_he.adder import FedmlHeSealer
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.fedml_he.sizes import FLOATS
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.seal_blocks import SealBlocks, minor_version
from flhe.schemes.seal_format import HEADER, SealFormat, to_seal_order
from flhe.schemes.seal_keys import SealPublic, SealSecret, pack
from flhe.wire import canonical
from tests.laws import KEY, SLOT, whole
from tests.rings import inverse

SCHEME = FedmlHe().adder(2, 20)
"""Its modulus has 56 bits, which leaves room for the second prime that TenSEAL wants."""


@functools.cache
def theirs() -> Any:
    """A context and key of TenSEAL's own making, in the same ring and modulus."""
    assert SCHEME.sizes.bits == 56
    return ts.context(
        ts.SCHEME_TYPE.CKKS,
        SCHEME.sizes.n,
        coeff_mod_bit_sizes=[56, 53],
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )


def unpacked(blob: bytes) -> bytes:
    """Members of one of SEAL's objects that is compressed."""
    reader = zstandard.ZstdDecompressor().decompressobj()
    return reader.decompress(blob[HEADER.size :])


@functools.cache
def their_key() -> SealSecret:
    """TenSEAL's key as ours: the words of the first modulus, as they lie in its serialization."""
    n, ring = SCHEME.sizes.n, SCHEME.sizes.ring
    data = theirs().serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    secret = data.rindex(HEADER.pack(0xA15E, 16, 4, minor_version(), 2, 0, 0)[:6])
    words = np.frombuffer(unpacked(data[secret:]), "<u8", 2 * n, offset=72)[:n]
    transform = np.empty(n, np.uint64)
    transform[to_seal_order(ring)] = words
    lifted = inverse(ring, transform)
    return SealSecret(
        "4096", np.where(lifted == ring.q - 1, -1, lifted.view(np.int64)).astype(np.int8)
    )


# --- TenSEAL as the other side ---


def test_tenseal_decrypts_what_we_encrypt() -> None:
    """With its own key, which it made itself, in a context of its own."""
    sizes, rng = SCHEME.sizes, np.random.default_rng(1)
    total, sums = None, np.zeros(3 * sizes.block, np.int64)
    for rank in range(2):
        values = rng.integers(-(2**19) + 1, 2**19, sums.size).astype(np.int32)
        sealer = FedmlHeSealer(SCHEME, their_key(), KEY, rank)
        total = SCHEME.add(total, sealer.encrypt(whole(values), SLOT))
        sums += values
    assert total is not None
    a = PolynomialMasks.of(sizes.ring, "ckks-a", KEY, SLOT, (0, 1)).blocks(0, 3)
    c = np.empty((3, sizes.n), np.uint64)
    sizes.limbs.read(total.data, c.size, 0, 0, c.reshape(-1))
    seal = SealFormat(sizes.n, sizes.q, minor_version())
    vectors = [seal.vector(ours, mask, sizes.scale) for ours, mask in zip(c, a, strict=True)]
    slots = [ts.ckks_vector_from(theirs(), v).decrypt() for v in vectors]
    digits, fits = sizes.digits.split(np.rint(np.concatenate(slots)).astype(np.int64), 2)
    assert fits
    assert np.array_equal(digits, sums)


def test_we_decrypt_what_tenseal_encrypts() -> None:
    sizes, n = SCHEME.sizes, SCHEME.sizes.n
    values = np.random.default_rng(2).integers(-99, 100, sizes.block)
    slots = sizes.digits.join(values).astype(float).tolist()
    vector = ts.ckks_vector(theirs(), slots, sizes.scale).serialize()
    c0, c1 = np.frombuffer(unpacked(vector[vector.index(b"\x5e\xa1") :]), "<u8", 2 * n, 97).reshape(
        2, n
    )
    opened = SealBlocks.of(sizes, their_key()).decrypt(c0[None], c1[None])
    assert np.array_equal(sizes.digits.split(np.rint(opened).astype(np.int64), 1)[0], values)


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


# --- what a server gets ---


def test_the_public_part_names_a_key_and_holds_none() -> None:
    key, other = (SealSecret.generate("4096") for _ in range(2))
    data = key.public.to_bytes()
    assert SealPublic.from_bytes(data) == key.public != other.public
    more = canonical.loads(data, 200, "public") | {"coefficients": pack(key.coefficients)}
    for wrong in (key.to_bytes(), canonical.dumps(more)):
        with pytest.raises(ProtocolError, match="seal-public"):
            FedmlHe().adder(2, public=wrong)


def test_the_server_adds_under_no_key_of_another_ring() -> None:
    """What it is told is looked at before anything is added."""
    from flhe.training.terms import Terms

    public = SealSecret.generate("2048").public.to_bytes()
    assert Terms(FedmlHe(ring="2048")).for_cohort(3, public=public).name == "fedml-he"
    for ring in ("4096", "8192"):
        with pytest.raises(ProtocolError, match="is of ring '2048'"):
            Terms(FedmlHe(ring=ring)).for_cohort(3, public=public)


# --- keys ---


def test_a_pair_that_no_honest_member_makes_is_refused() -> None:
    (key, other), zeros = (SealSecret.generate("4096") for _ in range(2)), np.zeros(4096, np.int8)
    elsewhere, none = SealSecret.generate("8192"), SealSecret("4096", zeros)
    public, secret = key.public.to_bytes(), key.to_bytes()
    check_pair(SCHEME, public, secret)
    for told in (
        (public, other.to_bytes()),
        (other.public.to_bytes(), secret),
        (none.public.to_bytes(), none.to_bytes()),
        (elsewhere.public.to_bytes(), elsewhere.to_bytes()),
        *((b"", secret), (public, b""), (secret, public)),
    ):
        with pytest.raises(ProtocolError):
            check_pair(SCHEME, *told)


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


def test_other_versions_of_tenseal_are_named() -> None:
    sizes = SCHEME.sizes
    fresh = ts.ckks_vector(theirs(), [1.0], sizes.scale).serialize()
    zstd = zstandard.ZstdDecompressor()
    start = fresh.index(b"\x5e\xa1")
    older = fresh[: start + 3] + b"\x03" + fresh[start + 4 :]
    with pytest.raises(ConfigError, match=r"install tenseal 0\.3\.18"):
        sizes.seal.polynomials(older, zstd)
    with pytest.raises(ConfigError, match=r"install tenseal 0\.3\.18"):
        SealFormat(sizes.n, FedmlHe().adder(2, 8).sizes.q).polynomials(fresh, zstd)

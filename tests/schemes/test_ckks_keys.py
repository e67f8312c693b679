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
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.fedml_he.sizes import FLOATS
from flhe.schemes.seal_format import SealFormat
from flhe.schemes.seal_keys import SealPublic, SealSecret, pack
from flhe.wire import canonical

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


# --- what a server gets ---


def test_the_public_part_names_a_key_and_holds_none() -> None:
    key, other = (SealSecret.generate("4096") for _ in range(2))
    data = key.public.to_bytes()
    assert SealPublic.from_bytes(data) == key.public != other.public
    more = canonical.loads(data, 200, "public") | {"coefficients": pack(key.coefficients)}
    for wrong in (key.to_bytes(), canonical.dumps(more)):
        with pytest.raises(ProtocolError, match="seal-public"):
            FedmlHe().adder(2, public=wrong)


# --- keys ---


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

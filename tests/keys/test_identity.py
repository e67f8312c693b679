"""Identities: the published vector, refusals, no seed on any screen, and words for the telephone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.identity import Identity, check_public, verify
from flhe.keys.roster.fingerprint import lines

P = 2**255 - 19
# RFC 8032, Sec. 7.1, TEST 2
SEED = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_rfc_8032_vector() -> None:
    identity = Identity(bytes.fromhex(SEED))
    assert identity.public.hex() == PUBLIC
    assert identity.sign(b"\x72").hex() == SIGNATURE
    verify(identity.public, bytes.fromhex(SIGNATURE), b"\x72")


def test_what_does_not_verify() -> None:
    identity, other = Identity.generate(lambda n: b"s" * n), Identity.generate()
    assert (identity.seed, f"{identity.seed}") == (b"s" * 32, "<32 bytes>")
    assert "ss" not in repr(identity)
    signature = identity.sign(b"message")
    cases = [
        (other.public, signature, b"message"),
        (identity.public, signature, b"messagE"),
        (identity.public, signature[:-1], b"message"),
        (identity.public, b"", b"message"),
        (identity.public, bytes(64), b"message"),
    ]
    for public, sig, message in cases:
        with pytest.raises(AuthenticationError):
            verify(public, sig, message)


@pytest.mark.parametrize(
    "y", [0, 1, P - 1, P, P + 1, 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7]
)
def test_keys_that_no_honest_site_has(y: int) -> None:
    """A signature under one of small order fits every message: R = the key itself, S = 0."""
    for sign in (0, 1 << 255):
        public = (y | sign).to_bytes(32, "little")
        with pytest.raises(ProtocolError, match="no honest site"):
            verify(public, public + bytes(32), b"anything")


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), "a" * 32, None])
def test_keys_and_seeds_of_another_length(data: Any) -> None:
    with pytest.raises(ProtocolError, match="32 bytes"):
        check_public(data)
    with pytest.raises(ConfigError, match="32 bytes"):
        Identity(data)


def test_every_number_has_its_own_word() -> None:
    """IPv4 addresses are the examples of the source."""
    words = " ".join(lines(b"".join(n.to_bytes(2, "big") for n in range(1 << 16)))).split()
    assert len(set(words)) == 1 << 16
    assert all(re.fullmatch("[^aiou][aiou][^aiou][aiou][^aiou]", word) for word in words)
    for address, told in (
        ("127.0.0.1", "lusab babad"),
        ("63.84.220.193", "gutih tugad"),
        ("140.98.193.141", "mudof sakat"),
    ):
        assert lines(bytes(map(int, address.split(".")))) == [told]
    assert [len(line.split()) for line in lines(bytes(32))] == [4, 4, 4, 4]
    with pytest.raises(ConfigError, match="even number of bytes, got 3"):
        lines(b"abc")

"""Words for the telephone: one spelling, every bit in them."""

from __future__ import annotations

import re

import pytest

from flhe.errors import ConfigError
from flhe.keys.roster.fingerprint import lines, to_words


def test_every_number_has_its_own_word() -> None:
    """IPv4 addresses are the examples of the source."""
    words = to_words(b"".join(number.to_bytes(2, "big") for number in range(1 << 16)))
    assert len(set(words)) == 1 << 16
    assert all(re.fullmatch("[^aiou][aiou][^aiou][aiou][^aiou]", word) for word in words)
    for address, told in (
        ("127.0.0.1", "lusab babad"),
        ("63.84.220.193", "gutih tugad"),
        ("140.98.193.141", "mudof sakat"),
    ):
        assert to_words(bytes(map(int, address.split(".")))) == told.split()
    assert [len(line.split()) for line in lines(bytes(32))] == [4, 4, 4, 4]
    with pytest.raises(ConfigError, match="two bytes, and 3 are an odd number"):
        to_words(b"abc")

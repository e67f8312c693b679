"""Words for the telephone: one spelling, every bit in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.keys.roster.fingerprint import lines, to_words


@given(st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_one_bit_changes_one_word(data: bytes, bit: int) -> None:
    other = bytearray(data)
    other[bit // 8] ^= 1 << (bit % 8)
    changed = [a != b for a, b in zip(to_words(data), to_words(bytes(other)), strict=True)]
    assert changed == [word == bit // 16 for word in range(16)]


def test_every_number_has_its_own_word() -> None:
    every = b"".join(number.to_bytes(2, "big") for number in range(1 << 16))
    words = to_words(every)
    assert len(set(words)) == 1 << 16
    assert all(re.fullmatch("[^aiou][aiou][^aiou][aiou][^aiou]", word) for word in words)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1", "lusab babad"),
        ("63.84.220.193", "gutih tugad"),
        ("140.98.193.141", "mudof sakat"),
    ],
)
def test_the_examples_of_the_proposal(address: str, words: str) -> None:
    """IPv4 addresses, from the text of the source."""
    assert to_words(bytes(map(int, address.split(".")))) == words.split()


def test_four_words_a_line() -> None:
    assert [len(line.split()) for line in lines(bytes(32))] == [4, 4, 4, 4]


def test_half_a_word() -> None:
    with pytest.raises(ConfigError, match="two bytes"):
        to_words(b"abc")

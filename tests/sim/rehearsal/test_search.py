"""A search for secrets finds any eight bytes of one, in any place and writing, and nothing else."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.rehearsal.search import KEY, WINDOW, Search, Secrets, share_seen

SECRET = random.Random(1).randbytes(64)
NOISE = random.Random(2).randbytes(4096)
APART = bytes(set(range(256)) - set(SECRET))[:1]
"""A byte that is not in the secret: noise beside a part of it may go on as the secret does."""


def secrets_of(**kinds: bytes) -> Secrets:
    secrets = Secrets()
    for kind, secret in kinds.items():
        secrets.add(kind, secret)
    return secrets


SEARCH = Search(secrets_of(key=SECRET, other=random.Random(3).randbytes(1000)))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 64 - WINDOW),
    st.integers(WINDOW, 64),
    st.integers(0, 4096),
    st.sampled_from([bytes, base64.b64encode, base64.urlsafe_b64encode]),
    st.binary(max_size=3),
)
def test_a_part_of_a_secret_is_found_wherever_it_stands(
    start: int, length: int, at: int, writing: Callable[[bytes], bytes], before: bytes
) -> None:
    """Of base64 in the middle of longer text too, at any alignment."""
    part = SECRET[start : start + length]
    data = NOISE[:at] + b" " + writing(before + part) + b" " + NOISE[at:]
    (found,) = SEARCH.find([("here", data)])
    assert (found.kind, found.place) == ("key", "here")
    # What stands before it, or follows the last letter, may be the secret's next byte.
    assert 0 <= found.count - (len(part) - WINDOW + 1) <= len(before) + 2


def test_zeros_and_small_numbers_are_everywhere() -> None:
    search = Search(secrets_of(key=bytes(64) + b"\x01\x00\xff" * 30 + SECRET))
    assert search.find([("plain", bytes(64) + b"\x01\x00\xff" * 30)]) == []
    assert search.find([("secret", SECRET)])[0].count == 57


def test_share_seen_is_that_of_windows() -> None:
    assert share_seen(SECRET, [NOISE, b"x" + SECRET]) == 1.0
    assert share_seen(SECRET, [SECRET[:32], SECRET[32:]]) == 50 / 57  # seven go over the border
    assert share_seen(SECRET, [NOISE]) == 0.0


def test_keys_are_looked_for_backwards_and_long_secrets_are_not() -> None:
    key, vector = NOISE[:KEY], NOISE[KEY : 3 * KEY]
    search = Search(secrets_of(key=key, vector=vector))
    (found,) = search.find([("here", vector[::-1] + key[::-1])])
    assert (found.kind, found.count) == ("key", KEY - WINDOW + 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 64), st.integers(0, WINDOW - 1), st.integers(0, 4096))
def test_seven_bytes_are_chance(start: int, length: int, at: int) -> None:
    part = APART + SECRET[start : start + length] + APART
    assert SEARCH.find([("here", NOISE[:at] + part + NOISE[at:])]) == []


def test_each_place_and_kind_is_told_apart() -> None:
    search = Search(secrets_of(one=SECRET[:16], two=SECRET[20:40]))
    places = [("a", NOISE), ("b", SECRET[:20] + b"-" + SECRET[20:]), ("empty", b"")]
    assert [(f.kind, f.place, f.count) for f in search.find(places)] == [
        ("one", "b", 9),
        ("two", "b", 13),
    ]
    assert Search(Secrets()).find(places) == []


def test_secrets_do_not_show_themselves_and_must_be_long_enough() -> None:
    secrets = secrets_of(key=SECRET, none=b"")
    secrets.add("key", SECRET, b"", source="site-a")
    secrets.add("key", b"", source="site-b")
    assert repr(secrets) == "Secrets(key: 1, none: 0)"
    assert secrets.sources == {"key": {"site-a"}}
    with pytest.raises(ConfigError, match="a secret of 7 bytes"):
        secrets.add("short", b"1234567")

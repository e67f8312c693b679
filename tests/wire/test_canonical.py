"""Canonical CBOR: what it carries comes back, everything else is refused without an echo."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.wire.canonical import MAX_DEPTH, dumps, loads

LEAVES = st.integers(-(2**64), 2**64 - 1) | st.binary() | st.text() | st.booleans() | st.none()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES)
def test_what_goes_in_comes_out(value: object) -> None:
    data = dumps(value)
    assert loads(data, len(data), "test") == value
    with pytest.raises(ProtocolError, match=f"{len(data)} bytes, at most"):
        loads(data, len(data) - 1, "test")


@given(VALUES, st.data())
def test_no_other_encoding_of_a_value_is_taken(value: object, draw: st.DataObject) -> None:
    data = bytearray(dumps(value))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    try:
        other = loads(bytes(data), len(data), "test")
    except ProtocolError:
        return
    assert dumps(other) == data


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("nothing", "", "ends early"),
        ("trailing byte", "0000", "after the end"),
        ("long-form number", "1800", "not canonical"),
        ("long-form length", "580141", "not canonical"),
        ("key twice", "a2616101616102", "not canonical"),
        ("keys unsorted", "a2616201616101", "not canonical"),
        ("key is a number", "a10101", "not text"),
        ("key is an array", "a18001", "not text"),
        ("half float", "f93c00", "floats"),
        ("double", "fb3ff0000000000000", "floats"),
        ("undefined", "f7", "floats"),
        ("simple value", "f820", "floats"),
        ("break", "ff", "floats"),
        ("bignum", "c249010000000000000000", "tags"),
        ("regular expression", "d8236161", "tags"),
        ("shared reference", "d81c80", "tags"),
        ("date", "c001", "tags"),
        ("indefinite array", "9f00ff", "indefinite"),
        ("indefinite bytes", "5f4100ff", "indefinite"),
        ("reserved length", "1c", "indefinite"),
        ("string beyond the end", "5bffffffffffffffff", "longer than the message"),
        ("array beyond the end", "9bffffffffffffffff", "more items"),
        ("map beyond the end", "bbffffffffffffffff", "more items"),
        ("number cut", "1b00", "ends early"),
        ("array cut", "820041", "longer"),
        ("text not UTF-8", "61ff", "malformed"),
    ],
)
def test_refused(name: str, data: str, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        loads(bytes.fromhex(data), 100, name)


def test_depth_is_bounded_both_ways() -> None:
    nest: object = 0
    for _ in range(MAX_DEPTH):
        nest = [nest]
    assert loads(dumps(nest), 100, "test") == nest
    with pytest.raises(ConfigError):
        dumps([nest])
    with pytest.raises(ProtocolError, match="nested"):
        loads(b"\x81" + dumps(nest), 100, "test")
    with pytest.raises(ProtocolError, match="nested"):
        loads(b"\x81" * 100_000 + b"\x00", 200_000, "test")
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError):  # cbor2 alone overflows the stack here
        dumps(deep)
    while deep:  # unwound by hand: freeing it recurses too
        deep = deep.pop()  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value", [1.5, 2**64, -(2**64) - 1, {1: 2}, {b"a": 1}, {1, 2}, object(), "\ud800", [[1.0]]]
)
def test_not_encoded(value: object) -> None:
    with pytest.raises(ConfigError, match="cannot encode"):
        dumps(value)


def test_errors_do_not_repeat_the_bytes() -> None:
    data = cbor2.dumps({"secret-key": 1.5})
    with pytest.raises(FlheError) as caught:
        loads(data, 100, "test")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(FlheError) as caught:
        loads(b"\x66secre\xff", 100, "test")
    assert "secr" not in str(caught.value)

"""Sealed: its header there and back, and nothing but FlheError for any other."""

from __future__ import annotations

import dataclasses
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import FlheError, ProtocolError, ReuseError
from flhe.keys import canonical
from flhe.sealed import MAX_HEADER, MAX_LENGTH, Sealed, Slot, check_senders, merged_senders
from tests.laws import OTHER_SLOTS, SLOT

DATA = np.arange(12, dtype=np.uint8)
SEALED = Sealed("flashe", SLOT, (0, 2, 5), 30, DATA)
CONTEXT = list(SLOT.context())
FIELDS = [1, "flashe", CONTEXT, [0, 2, 5], 30]

SLOTS = st.builds(
    Slot,
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
)


@given(
    st.text(max_size=20),
    SLOTS,
    st.sets(st.integers(0, 2000), min_size=1, max_size=30),
    st.integers(0, MAX_LENGTH - 1),
)
def test_header_round_trip(scheme: str, slot: Slot, senders: set[int], length: int) -> None:
    sealed = Sealed(scheme, slot, tuple(sorted(senders)), length, DATA)
    again = Sealed.from_parts(sealed.header(), DATA)
    assert again.data is DATA
    for f in ("scheme", "slot", "senders", "length"):
        assert getattr(again, f) == getattr(sealed, f)
    assert again.header() == sealed.header()
    assert again.digest() == sealed.digest()


def test_a_header_for_the_largest_cohort_fits() -> None:
    sealed = Sealed("flashe", SLOT, tuple(range(1024)), 30, DATA)
    assert len(sealed.header()) < 4096 < MAX_HEADER
    assert Sealed.from_parts(sealed.header(), DATA).senders == sealed.senders


def test_the_digest_is_over_everything() -> None:
    others = [dataclasses.replace(SEALED, slot=slot) for slot in OTHER_SLOTS.values()]
    others += [
        dataclasses.replace(SEALED, **change)
        for change in (
            {"scheme": "other"},
            {"senders": (0, 2)},
            {"length": 31},
            {"data": DATA[:-1]},
            {"data": DATA ^ np.uint8(1)},
        )
    ]
    digests = {SEALED.digest(), *(other.digest() for other in others)}
    assert len(digests) == len(others) + 1
    assert all(len(d) == 32 for d in digests)


def test_repr_shows_no_ciphertext() -> None:
    assert "data" not in repr(SEALED)


def with_field(index: int, value: Any) -> list[Any]:
    return [*FIELDS[:index], value, *FIELDS[index + 1 :]]


def with_context(index: int, value: Any) -> list[Any]:
    return with_field(2, [*CONTEXT[:index], value, *CONTEXT[index + 1 :]])


MALFORMED: dict[str, Any] = {
    "not a list": {"v": 1},
    "a number": 7,
    "nothing": None,
    "empty": [],
    "too short": FIELDS[:-1],
    "too long": [*FIELDS, 0],
    "version 0": with_field(0, 0),
    "version 2": with_field(0, 2),
    "version as text": with_field(0, "1"),
    "version true": with_field(0, True),
    "scheme as bytes": with_field(1, b"flashe"),
    "slot as map": with_field(2, {}),
    "slot too short": with_field(2, CONTEXT[:-1]),
    "slot too long": with_field(2, [*CONTEXT, 0]),
    "run beyond 64 bits": with_context(0, -1),
    "run false": with_context(0, False),
    "roster of 31 bytes": with_context(1, bytes(31)),
    "roster as text": with_context(1, "a" * 32),
    "epoch of 17 bytes": with_context(2, bytes(17)),
    "round beyond 32 bits": with_context(3, 1 << 32),
    "round negative": with_context(3, -1),
    "round true": with_context(3, True),
    "attempt beyond 32 bits": with_context(4, 1 << 32),
    "attempt false": with_context(4, False),
    "layout of no bytes": with_context(5, b""),
    "history of 33 bytes": with_context(6, bytes(33)),
    "no senders": with_field(3, []),
    "senders descend": with_field(3, [2, 0]),
    "sender twice": with_field(3, [0, 0]),
    "sender negative": with_field(3, [-1, 0]),
    "sender as text": with_field(3, ["0"]),
    "sender true": with_field(3, [True]),
    "sender null": with_field(3, [None]),
    "senders nested": with_field(3, [[0]]),
    "senders as map": with_field(3, {}),
    "length negative": with_field(4, -1),
    "length too large": with_field(4, MAX_LENGTH),
    "length true": with_field(4, True),
    "length as bytes": with_field(4, b"\x01"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_headers(name: str) -> None:
    with pytest.raises(ProtocolError):
        Sealed.from_parts(canonical.dumps(MALFORMED[name]), DATA)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff",
        SEALED.header() + b"\x00",
        SEALED.header()[:-1],
        cbor2.dumps([1.0, *FIELDS[1:]]),
        b"\x85\x18\x01" + SEALED.header()[2:],  # 1 in two bytes
        b"\x9f" + SEALED.header()[1:] + b"\xff",  # of indefinite length
        SEALED.header() + bytes(MAX_HEADER),
    ],
    ids=["empty", "junk", "longer", "shorter", "float", "long form", "indefinite", "huge"],
)
def test_headers_that_are_not_canonical(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        Sealed.from_parts(header, DATA)


@settings(max_examples=300)
@given(st.data())
def test_any_mutation_is_refused_or_read_exactly(data: st.DataObject) -> None:
    """Whatever arrives: an FlheError, or a header that is written again byte for byte."""
    header = bytearray(SEALED.header())
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "swap"]))
        at = data.draw(st.integers(0, max(len(header) - 1, 0)))
        if kind == "set" and header:
            header[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del header[at : at + data.draw(st.integers(1, 40))]
        elif kind == "insert":
            header[at:at] = data.draw(st.binary(max_size=9))
        elif header:
            other = data.draw(st.integers(0, len(header) - 1))
            header[at], header[other] = header[other], header[at]
    try:
        sealed = Sealed.from_parts(bytes(header), DATA)
    except FlheError:
        return
    assert sealed.header() == header


@settings(max_examples=200)
@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-3, 2**64 - 1), st.text(max_size=9), st.binary()
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=15,
    ),
    st.integers(0, 4),
)
def test_any_value_in_any_field_is_refused_or_read_exactly(value: Any, index: int) -> None:
    header = canonical.dumps(with_field(index, value))
    try:
        sealed = Sealed.from_parts(header, DATA)
    except FlheError:
        return
    assert [type(x) for x in (sealed.scheme, sealed.length)] == [str, int]
    assert sealed.header() == header


@pytest.mark.parametrize("senders", [(), (1, 0), (0, 0), (0, 1, 1)])
def test_senders_ascend_each_once(senders: tuple[int, ...]) -> None:
    with pytest.raises(ReuseError, match="must ascend, each once, at least one"):
        dataclasses.replace(SEALED, senders=senders)


def test_slots_that_cannot_be() -> None:
    for change in (
        {"run_id": -1},
        {"run_id": 1 << 64},
        {"round": 1 << 32},
        {"attempt": -1},
        {"roster_hash": b""},
        {"epoch": bytes(32)},
        {"layout_hash": bytes(16)},
        {"history": bytes(31)},
    ):
        with pytest.raises(ProtocolError, match="Slot"):
            dataclasses.replace(SLOT, **change)


def test_merging_names_what_differs() -> None:
    other = dataclasses.replace(SEALED, senders=(1, 3))
    assert merged_senders(SEALED, other, 6) == (0, 1, 2, 3, 5)
    for change in ({"scheme": "x"}, {"slot": OTHER_SLOTS["epoch"]}, {"length": 31}):
        with pytest.raises(ProtocolError, match=next(iter(change))):
            merged_senders(SEALED, dataclasses.replace(other, **change), 6)
    with pytest.raises(ProtocolError, match="sender 3 is not in the cohort of 3"):
        merged_senders(SEALED, other, 3)
    with pytest.raises(ReuseError, match="sender 2"):
        merged_senders(SEALED, dataclasses.replace(SEALED, senders=(1, 2)), 6)
    check_senders((0, 5), 6)
    for sender in (6, -1):
        with pytest.raises(ProtocolError, match=f"sender {sender} "):
            check_senders((0, sender), 6)
